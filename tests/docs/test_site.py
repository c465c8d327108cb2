"""The site has pictures that are up to date, a reference without gaps, and links that lead somewhere."""

import ast
import inspect
import json
import re
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from tools.docs import layers, pictures
from tools.docs.hooks import ELSEWHERE, without_outside_links
from trtllm_kvfix import errors, native, staging
from trtllm_kvfix.offload_section import OffloadSettings, RemoteSettings
from trtllm_kvfix.sections import FixSettings, ReplaySettings, Settings

ROOT = Path(__file__).resolve().parents[2]
README_WORDS_MAX = 900
REFERENCE = ROOT / "docs" / "reference"
HAZARDS = sorted((ROOT / "docs" / "hazards").glob("h*.md"))


def test_pictures_are_what_the_script_draws() -> None:
    drawn = dict(pictures.all_pictures(json.loads(pictures.RECORD.read_text())))
    assert {path.stem for path in pictures.FOLDER.glob("*.svg")} == set(drawn)
    stale = [name for name, text in drawn.items() if (pictures.FOLDER / f"{name}.svg").read_text() != text]
    assert stale == [], "run `python -m tools.docs.pictures`"


def test_the_picture_of_the_packages_is_what_the_table_of_layers_says() -> None:
    assert layers.FILE.read_text() == layers.drawn(), "run `python -m tools.docs.pictures`"


@pytest.mark.parametrize("page", HAZARDS, ids=lambda page: page.stem)
def test_a_hazard_shows_its_picture(page: Path) -> None:
    assert f"](pictures/{page.stem.partition('-')[0]}.svg)" in page.read_text()


def referenced() -> list[str]:
    return [
        name
        for page in sorted(REFERENCE.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]


def test_every_public_name_is_in_the_reference_once() -> None:
    public = {f"trtllm_kvfix._core.{name}" for name in native.__all__}
    public |= {f"trtllm_kvfix.staging.{name}" for name in staging.__all__}
    own = set(errors.__all__) - set(native.__all__) - {"EXIT_INTERRUPTED"}
    public |= {f"trtllm_kvfix.errors.{name}" for name in own}
    names = referenced()
    assert public - set(names) == set()
    assert len(names) == len(set(names))


def without_docstring(source: Path) -> list[str]:
    """Public functions, classes and members of classes that say nothing."""
    found = []
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef):
            members = [
                each for each in node.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
            ]
            found += [f"{node.name}.{each.name}" for each in members if not ast.get_docstring(each)]
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not ast.get_docstring(node):
            found.append(node.name)
    return found


def test_every_name_of_the_extension_says_what_it_is() -> None:
    assert without_docstring(ROOT / "trtllm_kvfix" / "_core.pyi") == []


def test_a_name_without_a_text_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "a.pyi"
    source.write_text('class A:\n    """Said."""\n    def b(self) -> None: ...\ndef c() -> None: ...\n')
    assert without_docstring(source) == ["A.b", "c"]


@pytest.mark.parametrize("model", [Settings, FixSettings, ReplaySettings, OffloadSettings, RemoteSettings])
def test_every_setting_has_a_text(model: type[BaseModel]) -> None:
    (found,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(found, ast.ClassDef)
    said = {
        field.target.id
        for field, text in pairwise(found.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    assert set(model.model_fields) - said == set()


def test_links_out_of_the_docs_become_names_only_where_the_file_is_there() -> None:
    outside = "[CONTRIBUTING](../CONTRIBUTING.md#adding-a-fix)"
    assert without_outside_links(outside, "design.md") == "CONTRIBUTING (`CONTRIBUTING.md` in the repository)"
    for kept in ("[offload](../offload.md)", "[gone](../../NO_SUCH_FILE.md)"):
        assert without_outside_links(kept, "hazards/h1.md") == kept


def test_links_to_a_page_that_lies_elsewhere_lead_to_its_place_on_the_site() -> None:
    assert without_outside_links("[watch](../watch/docs/hostrace.md#suppressions)", "index.md") == (
        "[watch](hostrace.md#suppressions)"
    )
    assert without_outside_links("[watch](../../watch/docs/hostrace.md)", "hazards/h1.md") == "[watch](../hostrace.md)"
    assert [path for path in ELSEWHERE if not (ROOT / path).is_file()] == []


def test_no_entry_of_the_changelog_says_what_another_says() -> None:
    """A merge that keeps both sides of a reworded entry leaves two, or the end of one behind the other."""
    text = (ROOT / "CHANGELOG.md").read_text()
    entries = [" ".join(entry.split())[:160] for entry in re.split(r"\n(?=- )", text)[1:]]
    assert [(a, b) for a, b in combinations(entries, 2) if are_alike(a, b)] == []


def are_alike(one: str, other: str) -> bool:
    words, others = set(one.split()), set(other.split())
    return len(words & others) > 0.65 * min(len(words), len(others))


def test_an_entry_that_was_reworded_is_like_what_it_was() -> None:
    was = "- `status` lists the fixes of a rank by their state, and says below what each of these states means."
    assert are_alike(was, was.replace("lists the fixes of a rank by", "shows a table of fixes with"))


def test_readme_says_before_its_first_command_what_was_not_verified() -> None:
    """The section is further down, as the first screen belongs to who wants the server to run."""
    first = (ROOT / "README.md").read_text().partition("```")[0]
    assert "It has not run inside a real TensorRT-LLM yet" in first and "](#what-was-verified-against-what)" in first


def test_readme_shows_first_what_to_type_then_what_is_hit_then_what_was_verified() -> None:
    text = (ROOT / "README.md").read_text()
    parts = (
        "trtllm-kvfix doctor", "trtllm-kvfix run", "$ trtllm-kvfix status", "**Kubernetes.**",
        "TRTLLM_KVFIX_ENABLED=false", "| you see |", "demo.svg", "| I run", "## What was verified against what",
    )  # fmt: skip
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS_MAX
