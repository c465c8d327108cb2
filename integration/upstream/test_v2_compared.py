"""Upstream's V2 runtime beside ours: a caller sees the same of both.

KVFIX_UPSTREAM names the folder whose `v2-runtime` holds upstream's files, in their places.
"""

import os
from functools import partial
from pathlib import Path

import pytest

from integration.upstream.v2_compared import (
    BOTH,
    FAULTS,
    NO_WAY_BACK,
    RESET_BEHIND_A_PART,
    RESET_WHILE_COMPUTED,
    SHORT_FIRST,
    TOO_MUCH_FIRST,
    alone,
    difference,
    of_theirs,
    outcomes,
    played,
)
from integration.upstream.v2_driver import FOLDER

TREE = Path(os.environ.get("KVFIX_UPSTREAM", "nowhere"), "v2-runtime")
needs_runtime = pytest.mark.skipif(
    not (TREE / FOLDER).exists(), reason=f"KVFIX_UPSTREAM names no folder that has v2-runtime/{FOLDER}"
)
pytestmark = needs_runtime
RUNS = int(os.environ.get("V2_RUNS", "60"))


@pytest.mark.parametrize("part", range(4))
def test_random_operations_do_the_same_on_both(part: int) -> None:
    found = {seed: difference(TREE, seed) for seed in range(part, RUNS, 4)}
    assert {seed: text for seed, text in found.items() if text not in (None, *FAULTS)} == {}
    assert None in found.values()


def test_a_short_prompt_at_the_root_makes_the_next_commit_fail_upstream() -> None:
    """The only block of its scope, not full, gives way to one that covers it, and the root goes with it."""
    assert alone(TREE, partial(played, SHORT_FIRST)) in FAULTS


def test_a_commit_fails_where_the_first_ones_pages_find_no_way_back() -> None:
    """Upstream raises in the middle of a commit: it takes the pages of the cache that committed first, and has no room
    for them on the device, nor for its own in the host tier."""
    assert str(alone(TREE, partial(played, NO_WAY_BACK))).startswith(f"{BOTH} commit raises OutOfPages")


def test_pages_that_fell_for_nothing_fall_no_more() -> None:
    """An allocation fails because the host tier is full. What it could have had before then fails, too."""
    *before, too_much, enough = TOO_MUCH_FIRST
    assert alone(TREE, partial(outcomes, (*before, enough))) == "ours True, upstream's True"
    assert alone(TREE, partial(outcomes, (*before, too_much, enough))) == "ours False, upstream's False"


def test_a_prompt_that_is_computed_when_reuse_is_reset_is_offered_behind_it() -> None:
    """With blocks of the old weights, where the reset is for new ones. Committed in parts, the prompt ends the loop."""
    assert alone(TREE, partial(of_theirs, RESET_WHILE_COMPUTED)) == "12"
    behind_a_part = alone(TREE, partial(of_theirs, RESET_BEHIND_A_PART))
    assert behind_a_part == "raises ValueError: Dereferencing a dangling rawref"
