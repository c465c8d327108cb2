"""The table of hazards is whole, agrees with the fixes, and is what the pages show."""

import re

import pytest

from tests.hazards.pages import COMMANDS, INSTEAD, NONE, hazards_table, page_of, remedy, shown_by
from tests.overlay.upstream_double import ROOT
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.hazards import table
from trtllm_kvfix.hazards.table import Hazard
from trtllm_kvfix.plurals import listed
from trtllm_kvfix.tools.reproduce import script_of
from trtllm_kvfix.tools.selfcheck.steps import SCENARIOS
from trtllm_kvfix.tools.verify.cases import CASES

VERIFY_IS_OFFERED_IN = ("cli.py", "usage.py", "tools/verify/command.py")
each_hazard = pytest.mark.parametrize("hazard", table.HAZARDS, ids=lambda hazard: hazard.id)
PAGES = ROOT / "docs" / "hazards"


def test_every_room_is_in_the_table_and_has_the_number_of_its_hazard() -> None:
    rooms = {path.parent.name for path in (ROOT / "trtllm_kvfix" / "hazards").glob("*/__init__.py")}
    assert rooms == {hazard.room for hazard in table.HAZARDS}, "a room has a record in hazards/table.py"
    assert all(re.fullmatch(r"H\d+", hazard.id) for hazard in table.HAZARDS), "a room is named after its number"


@each_hazard
def test_each_ground_carries_the_scenario_or_the_record_says_why_not(hazard: Hazard) -> None:
    shown = shown_by(hazard)
    for ground in COMMANDS:
        reason = hazard.not_on.get(ground)
        assert bool(shown[ground]) is not bool(reason), f"{hazard.id} on {ground}: {shown[ground]}, not there: {reason}"


def test_a_fix_is_of_the_hazard_whose_record_has_its_symptom() -> None:
    known = {fix: hazard.id for hazard in table.HAZARDS for fix in hazard.symptoms}
    assert {fix.id: fix.hazard for fix in ALL} | {name: each.hazard for name, each in INSTEAD.items()} == known


def test_the_commands_show_nothing_that_is_not_in_the_table() -> None:
    shown = [shown_by(hazard) for hazard in table.HAZARDS]
    assert {case.name for case in CASES} == {name for row in shown for name in row["device"]}
    assert [each.name for each in SCENARIOS] == [name for row in shown for name in row["installed"]]


@each_hazard
def test_a_scene_lacks_a_protection_that_the_engine_can_be_without(hazard: Hazard) -> None:
    if hazard.scene is not None:
        assert hazard.scene.fix in hazard.symptoms
        assert not EngineConfig(**hazard.scene.config, off=frozenset([hazard.scene.fix])).has(hazard.scene.fix)


@each_hazard
def test_each_hazard_has_its_page_its_script_and_its_rows_in_the_readme(hazard: Hazard) -> None:
    page = page_of(hazard)
    assert (PAGES / page).is_file(), f"docs/hazards/{page}: the page of {hazard.id}"
    assert script_of(hazard.id).startswith(f'"""{hazard.id}: ')
    assert f"hazards/{page}" in (ROOT / "mkdocs.yml").read_text(), f"mkdocs.yml does not list hazards/{page}"
    readme = (ROOT / "README.md").read_text()
    for fix, symptom in hazard.symptoms.items():
        protection = remedy(fix).replace("(../", "(docs/")
        row = f"| {symptom} | [{hazard.id}](docs/hazards/{page}) | {protection} |"
        assert row in readme, f"README.md lacks a row that begins: {row}"


def test_the_page_of_hazards_has_the_table() -> None:
    assert hazards_table() in (PAGES / "README.md").read_text(), "run: python -m tests.hazards.pages"


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "Makefile", *(f"trtllm_kvfix/{name}" for name in VERIFY_IS_OFFERED_IN)]
)
def test_where_verify_is_offered_stand_the_hazards_that_it_shows(page: str) -> None:
    shown = dict.fromkeys(case.hazard for case in CASES)
    bare = [each.hazard for each in INSTEAD.values() if each.what == NONE and each.hazard in shown]
    said = f"{listed(name for name in shown if name not in bare)} beside their fixes, and {listed(bare)}"
    text = (ROOT / page).read_text()
    assert said in text or f"Reproduce {listed(shown)} " in text
