"""A fix is the five files that CONTRIBUTING.md names, and its places in pages. A test says which one is missing."""

import pytest

from tests.fixes.proofs import broken_of, places_of
from tests.fixes.whole import FILES, forgotten
from trtllm_kvfix.fix_ids import FIX_IDS, room_of
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import Fix

FILES_MAX = 5


def test_contributing_names_every_file_of_a_fix() -> None:
    assert len(FILES) == FILES_MAX


def test_no_fix_has_forgotten_a_place() -> None:
    assert list(forgotten()) == []


@pytest.mark.parametrize(("fix_id", "fix"), list(zip(FIX_IDS, ALL, strict=True)), ids=FIX_IDS)
def test_every_record_has_the_id_of_its_room(fix_id: str, fix: Fix) -> None:
    assert fix.id == fix_id


@pytest.mark.parametrize("fix_id", FIX_IDS)
def test_every_fix_is_broken_and_made_to_fail(fix_id: str) -> None:
    assert broken_of(fix_id).name.startswith(f"fixes.{room_of(fix_id)}.")
    assert places_of(fix_id), f"tests/fixes/test_{room_of(fix_id)}.py has an empty PLACES"
