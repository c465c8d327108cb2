"""Two engines of one process, whose threads meet in our code: what belongs to one never reaches the other."""

import pytest

from tests.fixes.applied import applied, standing_in
from tests.torture.engines import RACY, SEED, SERVINGS, Serving, needed, serve_side_by_side
from trtllm_kvfix.overlay.registry import Registry

HERE = f"TORTURE_SEED={SEED}"
FOUR = [serving for serving in SERVINGS if str(serving) in ("B-v2", "C-v1")]


def faults(registry: Registry) -> list[str]:
    return [each.first_error for each in registry.report().fixes if each.faults]


@pytest.mark.parametrize("serving", RACY, ids=str)
def test_without_the_fixes_each_engine_corrupts(serving: Serving) -> None:
    """The control: the stand-in carries two engines, and both are seen."""
    with standing_in(serving.variant):
        corrupt = serve_side_by_side(serving, rounds=1)
    assert all(corrupt), (corrupt, HERE)


@pytest.mark.parametrize("serving", SERVINGS, ids=str)
def test_with_all_fixes_neither_engine_corrupts(serving: Serving) -> None:
    with standing_in(serving.variant), applied(needed(serving.variant)) as registry:
        assert serve_side_by_side(serving, alike=True) == [0, 0], HERE
        assert faults(registry) == []


@pytest.mark.parametrize("serving", RACY, ids=str)
def test_the_staging_alone_keeps_both_engines_right(serving: Serving) -> None:
    """Without the fence, which waits for every input copy, so that no fix hides behind another."""
    with standing_in(serving.variant), applied([serving.fix]) as registry:
        assert serve_side_by_side(serving) == [0, 0], HERE
        assert faults(registry) == []


@pytest.mark.parametrize("serving", FOUR, ids=str)
def test_four_engines_are_as_right_as_two(serving: Serving) -> None:
    with standing_in(serving.variant), applied(needed(serving.variant)):
        assert serve_side_by_side(serving, engines=4, rounds=3) == [0] * 4, HERE
