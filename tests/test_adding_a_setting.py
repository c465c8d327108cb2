"""A setting has a page, an effect and a sample: CONTRIBUTING.md (Adding a setting) lists the places."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.test_settings import SAMPLES
from trtllm_kvfix.offload_section import OffloadSettings, RemoteSettings
from trtllm_kvfix.sections import FixSettings, ReplaySettings, Settings
from trtllm_kvfix.settings import names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "trtllm_kvfix"
DECLARED_IN = ("sections.py", "offload_section.py", "settings.py")
# The page where a user reads of it. The ids of fixes stand in a table of docs/support.md that has a test of its own.
PAGES = {"offload": "offload.md"}
MODELS: tuple[type[BaseModel], ...] = (Settings, FixSettings, OffloadSettings, RemoteSettings, ReplaySettings)
OURS = [name for name in names() if name[0] != "fixes"]
# Each setting of `replay` is the default of an option, which `replay --help` explains; the reference lists them.
ON_PAGES = [name for name in OURS if name[0] != "replay"]


def read(sources: Iterator[str]) -> set[str]:
    """Names of attributes that some code reads."""
    return {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


@pytest.fixture(scope="module")
def attributes() -> set[str]:
    return read(file.read_text() for file in PACKAGE.rglob("*.py") if file.name not in DECLARED_IN)


def is_named(setting: str, page: str) -> bool:
    return re.search(rf"`[^`\n]*\b{setting}\b[^`\n]*`", page) is not None


@pytest.mark.parametrize("name", ON_PAGES, ids=".".join)
def test_every_setting_has_a_page(name: tuple[str, ...]) -> None:
    page = PAGES.get(name[0], "support.md")
    text = (ROOT / "docs" / page).read_text()
    assert is_named(name[-1], text), f"docs/{page} does not name `{name[-1]}`: CONTRIBUTING.md, Adding a setting"


@pytest.mark.parametrize("model", MODELS)
def test_every_section_is_in_the_reference_which_shows_its_fields(model: type[BaseModel]) -> None:
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert f"::: {model.__module__}.{model.__name__}\n" in reference


@pytest.mark.parametrize("name", OURS, ids=".".join)
def test_every_setting_is_read_by_some_code(name: tuple[str, ...], attributes: set[str]) -> None:
    assert name[-1] in attributes, f"kvfix.{'.'.join(name)} is declared, and nothing reads it"


def test_every_sample_is_of_a_setting() -> None:
    known = {part for name in names() for part in name}
    assert [name for name in SAMPLES if name not in known] == []


def test_a_setting_without_a_page_or_an_effect_is_noticed() -> None:
    assert not is_named("spare_slots", "`tuning.staging_slots` and spare_slots without backticks")
    assert is_named("spare_slots", "| `tuning.spare_slots` | `3` |")
    assert read(iter(["settings.spare_slots = 3"])) == set()
    assert read(iter(["use(settings.spare_slots)"])) == {"spare_slots"}
