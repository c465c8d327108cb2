"""A fix is added in a copy of the tree: whoever forgets a place is told its name, and in the end nothing is missing."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fresh
from tests.fixes.whole import ROOT
from trtllm_kvfix import native

ID, ROOM, HAZARD = "spare-tables", "spare_tables", "h2_block_offsets_v2"
EXTENSION = str(sys.modules[native.BlockManager.__module__].__file__)
# An editable installation finds the checkout before anything that is in the path.
RUN = """
import runpy, sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in type(each).__module__]
runpy.run_module("tests.fixes.whole", run_name="__main__")
"""
PARTS = ("trtllm_kvfix", "tests", "docs")
PAGES = ("README.md", "CONTRIBUTING.md")
RECORD = """
from trtllm_kvfix.fixes.probe_answers import absent, in_variants
from trtllm_kvfix.overlay.fix import Fix

FIX = Fix(
    id="spare-tables",
    hazard="H2",
    title="A fix for this test",
    upstream=(),
    triggers=(),
    probe=lambda up: absent("it is for a test"),
    replacements=lambda up, settings: (),
    self_test=lambda: None,
    expected=in_variants(absent="A B B2 C D F"),
)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXTENSION, folder / "trtllm_kvfix")
    for page in PAGES:
        shutil.copy(ROOT / page, folder / page)
    return folder


def told(copy: Path) -> list[str]:
    done = fresh.run([sys.executable, "-c", RUN], cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)})
    assert done.returncode == 0, done.stderr
    assert all(line.startswith((f"{ID}: ", "trtllm_kvfix/fixes/")) for line in done.stdout.splitlines())
    return [line.removeprefix(f"{ID}: ") for line in done.stdout.splitlines()]


def put(path: Path, before: str, text: str) -> None:
    """Put the text in front of the first `before`, which has to be there."""
    content = path.read_text()
    assert before in content, f"{path.name} has no {before!r}"
    path.write_text(content.replace(before, text + before, 1))


def steps(copy: Path) -> Iterator[tuple[str, list[str]]]:
    """Take a step, and say what is still missing after it, by parts of the sentences."""
    package = copy / "trtllm_kvfix"
    room, tests = package / "fixes" / ROOM, copy / "tests" / "fixes" / f"test_{ROOM}.py"
    room.mkdir()
    (room / "fix.py").write_text(RECORD)
    yield "a room without an id", [f"trtllm_kvfix/fixes/{ROOM} has no id in trtllm_kvfix/fix_ids.py"]
    (room / "fix.py").unlink()
    put(package / "fix_ids.py", '    "nixl-listener",', f'    "{ID}",\n')
    files = [f"trtllm_kvfix/fixes/{ROOM}/fix.py", f"tests/fixes/test_{ROOM}.py"]
    yield "an id", [f"{file} is missing" for file in files]
    (room / "fix.py").write_text(RECORD.replace('"H2"', '"H99"'))
    tests.write_text("")
    hazard = "its hazard is H99, which has no room in trtllm_kvfix/hazards/table.py"
    pages = ["docs/support.md has no row", "`When a fix fails`", "README.md has no row"]
    pages += ["docs/hazards/README.md", "`selfcheck`", "`observe`"]
    yield "files", [hazard, "has no BROKEN", "has no PLACES", "a reason in BLIND", *pages]
    (room / "fix.py").write_text(RECORD)
    tests.write_text("BROKEN = None\nPLACES = ()\n")
    put(package / "fix_ids.py", '    "nixl-listener": "', f'    "{ID}": "it is for a test",\n')
    record = "trtllm_kvfix/hazards/table.py, H2, has no symptom"
    scenario = f"trtllm_kvfix/hazards/{HAZARD}/installed.py has no scenario"
    yield "a hazard", [record, scenario, *pages]
    put(package / "hazards" / "table.py", '            "staged-offsets-v2": ', f'        "{ID}": "nothing",\n')
    more = f'\nSCENARIOS += (Scenario("spare", "{ID}", lambda ground, up: None),)\n'
    with (package / "hazards" / HAZARD / "installed.py").open("a") as installed:
        installed.write(more)
    yield "a scenario", pages
    put(copy / "docs" / "support.md", "| `nixl-listener` | H6 |", f"| `{ID}` | H2 |\n")
    put(copy / "docs" / "hazards" / "README.md", "| [H3]", f"| [H2](page) | what | `{ID}` |\n")
    put(
        copy / "README.md",
        "| the same with V1's manager |",
        f"| nothing | [H2](page) | `{ID}` |\n",
    )
    yield "tables", ["`When a fix fails`", "`selfcheck`", "`observe`"]
    put(copy / "docs" / "support.md", "| `nixl-listener` | the arguments", f"| `{ID}` | nothing |\n")
    put(copy / "docs" / "rollout.md", "| `listener` | `nixl-listener` |", f"| `spare` | `{ID}` |\n")
    put(copy / "docs" / "rollout.md", "    nixl-listener: off\n", f"    {ID}: off\n")
    yield "pages", []


def test_who_adds_a_fix_is_told_each_place_that_is_missing(copy: Path) -> None:
    for step, missing in steps(copy):
        sentences = told(copy)
        assert len(sentences) == len(missing), (step, sentences)
        for part, sentence in zip(missing, sentences, strict=True):
            assert part in sentence, step
