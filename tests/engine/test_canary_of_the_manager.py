"""The canary that `kvfix.canary` puts beside the native manager: it hears upstream's calls of V1, and nothing else.

The embedded engine makes these calls as upstream's own loop does, and its kernels write through the block tables.
"""

from dataclasses import replace

import pytest

from tests.canary.blind import blind
from tests.engine.load import ENGINES, TIGHT, usual_load, with_fix, without
from tests.engine.test_canary import HEARD, SPEAKS_WITHIN, Watched

WATCHED = [name for name, config in ENGINES.items() if config.tier == "native"]


@pytest.fixture(autouse=True)
def observing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_CANARY", "observe")


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("cancels", [0, 7], ids=["", "with cancels"])
def test_it_is_silent_where_all_is_right(name: str, cancels: int) -> None:
    watched = Watched(usual_load(), ENGINES[name], cancels=cancels)
    report = watched.report
    assert report.state == "observes" and report.counts == {} and watched.wrong == []
    # It has looked: silence of a canary that looks at nothing shows nothing.
    assert {each for each, count in report.blocks_compared.items() if count > 50} >= {"reused", "freed", "live"}
    assert report.blocks_taken > 500 and report.missed < report.blocks_taken / 10


def test_it_and_the_engines_own_hear_the_same_copies() -> None:
    watched = Watched(usual_load(), replace(TIGHT, canary=8))
    assert watched.beside is not None
    for report in (watched.report, watched.beside):
        assert report.counts == {} and report.blocks_compared["returned"] > 20


@pytest.mark.parametrize("blocks_per_step", [8, 64])
@pytest.mark.parametrize("hazard", HEARD)
def test_it_speaks_soon_after_the_first_write_that_may_be_wrong(
    hazard: str, blocks_per_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_CANARY_BLOCKS_PER_STEP", str(blocks_per_step))
    watched = Watched(usual_load(), HEARD[hazard], until_it_speaks=True)
    begin = watched.first_move if hazard == "H5" else 0
    assert 0 < watched.first_word <= begin + SPEAKS_WITHIN


def test_it_speaks_of_blocks_that_nobody_computed() -> None:
    watched = Watched(usual_load(), without(TIGHT, "computed-blocks"), until_it_speaks=True)
    assert watched.report.findings[0].kind == "unfilled" and watched.wrong == []


def test_without_the_comparison_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    watched = Watched(usual_load(), HEARD["H1"])
    assert watched.report.counts == {} and watched.wrong, "answers are wrong, and nothing is seen"


def test_it_changes_nothing_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_fix(TIGHT, "staged-offsets-v1")
    watched = Watched(usual_load(), config)
    monkeypatch.setenv("TRTLLM_KVFIX_CANARY", "off")
    alone = Watched(usual_load(), replace(config, canary=1))
    assert watched.steps == alone.steps and watched.wrong == alone.wrong == []
