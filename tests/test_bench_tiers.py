"""bench/host_policies.py: the tiers beside the GPU that pages compare, on traffic whose end can be counted by hand."""

from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
GPU = 12
SLOTS = 16


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return import_module("host_policies")


@pytest.fixture
def circle(policies: ModuleType) -> list[object]:
    """Six prompts of four blocks in turn: more than the GPU or the tier has, and less than both have."""
    return [policies.Asked([10 * (turn % 6) + at for at in range(4)], 4, 0) for turn in range(60)]


@pytest.mark.parametrize(("offered_at", "found"), [(1.0, 54 * 4), (0.0, 0)])
def test_only_a_tier_without_second_copies_has_what_fits_both(
    policies: ModuleType, circle: list[object], offered_at: float, found: int
) -> None:
    tier = policies.ExclusiveLru(SLOTS)
    assert policies.evicted_to(tier, circle, GPU, offered_at)[:2] == (0, found)


def test_a_block_that_is_asked_for_again_leaves_a_tier_that_took_it_early(policies: ModuleType) -> None:
    tier = policies.ExclusiveLru(SLOTS)
    requests = [policies.Asked([turn % 3], 1, 0) for turn in range(9)]
    assert policies.evicted_to(tier, requests, GPU, 2 / GPU) == (6, 0, 7)
    assert len(tier.here) == 1, "the GPU has asked for the others since"


TURNS = 100


def prompts_that_come_twice(policies: ModuleType) -> Iterator[tuple[object, list[int]]]:
    """A prompt of kind 1, two that nobody asks for again, and the one that came two turns before, for the last time.

    What comes back fits the tier, and all that is asked for until then does not.
    """
    new = count()
    twice = [[next(new) for _ in range(4)] for _ in range(TURNS)]
    for turn in range(TURNS):
        yield policies.Asked(twice[turn], 4, 0), [1] * 4
        for _ in range(2):
            yield policies.Asked([next(new) for _ in range(4)], 4, 0), [0] * 4
        yield policies.Asked(twice[turn - 2] if turn >= 2 else [], 4 if turn >= 2 else 0, 0), [0] * 4 * (turn >= 2)


def test_what_is_told_of_kinds_says_which_blocks_to_keep(policies: ModuleType) -> None:
    requests = list(prompts_that_come_twice(policies))
    everything = (TURNS - 2) * 4
    assert policies.Told(SLOTS, [policies.Touched(*each) for each in requests]).found() == everything
    alike = [policies.Touched(asked, [0] * len(kinds)) for asked, kinds in requests]
    assert policies.Told(SLOTS, alike).found() < everything * 3 / 4, "nothing says which"
