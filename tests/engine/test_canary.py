"""The canary beside a whole engine: silent where all is right, quick where it is not."""

from dataclasses import replace

import pytest

from tests.canary.blind import blind
from tests.engine.load import ENGINES, TIGHT, Load, replace_request, usual_load, with_fix, without
from trtllm_kvfix.canary.canary import CanaryReport
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.loop import Engine
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import SettingsError

SPEAKS_WITHIN = 50  # steps


class Watched:
    """A load through an engine with a canary: when it first spoke, and whether an answer was wrong by then."""

    def __init__(
        self, load: Load, config: EngineConfig, *, until_it_speaks: bool = False, cancels: int = 0, device: str = "cpu"
    ) -> None:
        machine = open_machine(device)
        engine = Engine(machine, load.model, config)
        canary = engine.cache.canary or engine.cache.books.canary
        assert canary is not None
        self.first_move = self.first_word = 0  # steps; 0: never
        self.wrong: list[int] = []
        try:
            requests = load.requests()
            # Every third prompt comes again: an exact repeat.
            requests += [_again(request, 10_000) for request in requests[::3]]
            for request in requests:
                engine.submit(request)
            while engine.busy:
                for ended in engine.step():
                    expected = load.expected[ended.request_id % 10_000]
                    if ended.answer != expected:
                        self.wrong.append(ended.request_id)
                if cancels and engine.steps % cancels == 0 and engine.scheduler.running:
                    engine.cancel(engine.scheduler.running[-1])
                self._note(engine)
                if until_it_speaks and self.first_word:
                    break
            self.steps = engine.steps
            self.preemptions = engine.scheduler.counts.preemptions
            self.report: CanaryReport = canary.report()
            self.beside = None if engine.cache.books.canary is None else engine.cache.books.canary.report()
        finally:
            engine.close()
            machine.close()

    def _note(self, engine: Engine) -> None:
        canary = engine.cache.canary or engine.cache.books.canary
        assert canary is not None
        if not self.first_move and engine.cache.core.get_kv_cache_stats().total.blocks_offloaded:
            self.first_move = engine.steps
        if not self.first_word and canary.report().counts:
            self.first_word = engine.steps


def _again(request: Request, offset: int) -> Request:
    fresh = replace_request(request)
    fresh.request_id += offset
    return fresh


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("cancels", [0, 7], ids=["", "with cancels"])
def test_it_is_silent_where_all_is_right(config: EngineConfig, cancels: int) -> None:
    watched = Watched(usual_load(), replace(config, canary=8), cancels=cancels)
    report = watched.report
    assert report.state == "observes" and report.counts == {}
    assert watched.wrong == [] and watched.preemptions > 0
    # It has looked: silence of a canary that looks at nothing shows nothing.
    occasions = {"reused", "freed", "live"} | ({"returned"} if config.tier == "native" else set())
    assert {each for each, count in report.blocks_compared.items() if count > 20} >= occasions
    assert report.blocks_taken > 500


HEARD = {
    "H1": without(TIGHT, "staged-offsets-v1"),
    "H2": without(TIGHT, "staged-offsets-v2"),
    "H5": without(TIGHT, "transfer-order"),
}


@pytest.mark.parametrize("blocks_per_step", [8, 64])
@pytest.mark.parametrize("hazard", HEARD)
def test_it_speaks_soon_after_the_first_write_that_may_be_wrong(hazard: str, blocks_per_step: int) -> None:
    """Nothing can go wrong before the first step, and with H5 not before the first copy between the tiers."""
    watched = Watched(usual_load(), replace(HEARD[hazard], canary=blocks_per_step), until_it_speaks=True)
    begin = watched.first_move if hazard == "H5" else 0
    assert 0 < watched.first_word <= begin + SPEAKS_WITHIN
    assert hazard in watched.report.findings[0].hazards


@pytest.mark.parametrize("blocks_per_step", [8, 64])
def test_it_speaks_of_blocks_that_nobody_computed_before_an_answer_is_wrong(blocks_per_step: int) -> None:
    config = replace(without(TIGHT, "computed-blocks"), canary=blocks_per_step)
    watched = Watched(usual_load(), config, until_it_speaks=True)
    assert watched.first_word > 0 and watched.wrong == []
    (found, *_) = watched.report.findings
    assert (found.kind, found.hazards) == ("unfilled", ("H8",))


@pytest.mark.parametrize("hazard", HEARD)
def test_without_the_comparison_it_is_silent(hazard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    watched = Watched(usual_load(), replace(HEARD[hazard], canary=8))
    assert watched.report.counts == {} and watched.wrong, "answers are wrong, and nothing is seen"


def test_it_cannot_see_what_is_computed_from_wrong_inputs() -> None:
    """H9: wrong from birth, and never changed."""
    watched = Watched(usual_load(), replace(without(TIGHT, "graph-inputs"), canary=64))
    assert watched.wrong and watched.report.counts == {}


def test_it_changes_nothing_for_the_engine() -> None:
    config = with_fix(TIGHT, "staged-offsets-v1")
    watched, again = (Watched(usual_load(), replace(config, canary=number)) for number in (1, 64))
    assert watched.steps == again.steps and watched.wrong == again.wrong == []


def test_a_negative_number_of_blocks_is_refused() -> None:
    with pytest.raises(SettingsError, match="canary is -1"):
        EngineConfig(canary=-1)
