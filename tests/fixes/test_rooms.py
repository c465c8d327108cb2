"""A fix is the five files that CONTRIBUTING.md names. A test says which one is missing, or what is missing in it."""

import re
from pathlib import Path

import pytest

from tests.fixes.proofs import broken_of, places_of
from tests.standin.fixture import VARIANTS
from trtllm_kvfix.fix_ids import FIX_IDS, room_of
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import Fix

ROOT = Path(__file__).resolve().parents[2]
FILES_MAX = 5
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Adding a fix\n")[2].partition("\n## ")[0]
FILES = re.findall(r"^\d\. `([^`]+)`", CONTRIBUTING, re.MULTILINE)


def test_contributing_names_every_file_of_a_fix() -> None:
    assert len(FILES) == FILES_MAX


def test_every_room_has_its_id_in_the_list() -> None:
    rooms = {path.parent.name for path in (ROOT / "trtllm_kvfix" / "fixes").glob("*/__init__.py")}
    assert rooms == {room_of(fix_id) for fix_id in FIX_IDS}, "a room has an __init__.py and an id in fix_ids.py"


@pytest.mark.parametrize("fix_id", FIX_IDS)
def test_every_file_of_a_fix_is_there(fix_id: str) -> None:
    files = [ROOT / file.replace("ROOM", room_of(fix_id)) for file in FILES]
    assert [str(file.relative_to(ROOT)) for file in files if not file.is_file()] == []


@pytest.mark.parametrize(("fix_id", "fix"), list(zip(FIX_IDS, ALL, strict=True)), ids=FIX_IDS)
def test_every_record_has_the_id_of_its_room_and_knows_every_variant(fix_id: str, fix: Fix) -> None:
    assert fix.id == fix_id
    assert sorted(fix.expected) == sorted(VARIANTS)


@pytest.mark.parametrize("fix_id", FIX_IDS)
def test_every_fix_is_broken_and_made_to_fail(fix_id: str) -> None:
    assert broken_of(fix_id).name.startswith(f"fixes.{room_of(fix_id)}.")
    assert places_of(fix_id), f"tests/fixes/test_{room_of(fix_id)}.py has an empty PLACES"
