"""The canary beside a V1 manager in its loops: silent where all is right, and loud where it is not."""

from typing import Any

import pytest

from tests.canary.blind import blind
from tests.standin.fixture import VARIANTS
from trtllm_kvfix.canary.canary import BLOCKS_PER_STEP, Canary, Finding
from trtllm_kvfix.managers import watched_v1
from trtllm_kvfix.managers.watched import filled_of
from trtllm_kvfix.managers.watched_v1 import WatchedV1

from .v1_watched import BLOCKS, SIZE, Traffic
from .v1_watched import watched_v1 as watching
from .v2_attack import SILENT_STEPS, STEPS

# 1.1 orders a copy of a part of a block with nothing, so there contents are wrong without us.
PARTIAL = [variant for variant in VARIANTS if variant != "A"]
STORES_UNCOMPUTED = ("A", "B")


def is_silent(traffic: Traffic) -> None:
    report = traffic.report
    assert (report.state, report.counts) == ("observes", {})
    assert traffic.contents.corrupt == []


# 1.1 orders copies between the tiers with nothing either.
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
@pytest.mark.parametrize(
    ("variant", "has_host"), [(each, False) for each in VARIANTS] + [(each, True) for each in PARTIAL]
)
def test_it_is_silent_where_all_is_right(variant: str, overlap: bool, has_host: bool) -> None:
    with watching(variant, overlap=overlap, partial_reuse=variant in PARTIAL, has_host=has_host) as traffic:
        traffic.run(SILENT_STEPS)
        is_silent(traffic)
        report = traffic.report
        looked = {each for each, n in report.blocks_compared.items() if n > SILENT_STEPS // 15}
        assert looked >= {"reused", "freed", "live"}
        assert report.blocks_taken > SILENT_STEPS and traffic.contents.reads > SILENT_STEPS


def planted(variant: str) -> tuple[list[Finding], tuple[int, int]]:
    """What is found, and the slot and the step."""
    with watching(variant, partial_reuse=variant in PARTIAL, cancels=False) as traffic:
        traffic.plants_at, traffic.done = 60, lambda: traffic.speaks
        traffic.run(60 + STEPS)
        assert traffic.planted is not None
        return traffic.report.findings, traffic.planted


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_bit_of_a_block_is_found(variant: str) -> None:
    (found, *_), (slot, step) = planted(variant)
    assert (found.kind, found.slot, found.layers) == ("changed", slot, (0,))
    assert found.right_at <= step < found.wrong_at <= step + 2 * BLOCKS / BLOCKS_PER_STEP + 1


def test_without_the_comparison_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    assert planted("D")[0] == []


@pytest.mark.parametrize(("variant", "has_host"), [*((each, False) for each in STORES_UNCOMPUTED), ("B", True)])
def test_it_speaks_of_blocks_that_nobody_has_computed(variant: str, has_host: bool) -> None:
    with watching(variant, without="computed-blocks", partial_reuse=False, budget=16, has_host=has_host) as traffic:
        traffic.done = lambda: traffic.speaks
        traffic.run(10 * STEPS)
        first = traffic.report.findings[0]
        assert first.kind == "unfilled" and first.hazards == ("H8",)


def _nothing(*_: Any) -> None:
    """Of what is left out."""


TELL, RESTS, ADMITTED, LET_GO = WatchedV1._tell, WatchedV1._rests, Canary.admitted, Canary.let_go


def _tells_seldom(self: WatchedV1) -> None:
    if self._step % 4 == 0:
        TELL(self)


def _asks_late(self: WatchedV1, request_id: int, one: Any, until: int) -> None:
    RESTS(self, request_id, one, until + SIZE)


def _ends_unheard(self: WatchedV1, request_id: int) -> None:
    if self._holders.pop(request_id, None) is not None:
        self._prompts.discard(request_id)
        self.canary.released(request_id)


def _takes_all_as_it_is(self: Canary, request_id: int, slots: list[int], reused: int, _: bool) -> None:
    ADMITTED(self, request_id, slots, reused)


def _forgets(self: Canary, slots: list[int], *_: Any) -> None:
    LET_GO(self, slots)


def _counts_the_next(request: Any) -> int:
    return filled_of(request) + 1


# What a correct server does to complete blocks, and the rule that keeps the canary from taking it for a change.
LEFT_OUT: dict[str, tuple[Any, str, Any]] = {
    "prompts are told before others find their blocks": (WatchedV1, "_tell", _tells_seldom),
    "further blocks have been another's": (WatchedV1, "_rests", _asks_late),
    "what an answer has written is told at its end": (WatchedV1, "ends", _ends_unheard),
    "a prefix that ends inside a block": (Canary, "admitted", _takes_all_as_it_is),
    "dummies write into their blocks": (WatchedV1, "has_dummies", _nothing),
    "the last token's place is not written yet": (watched_v1, "filled_of", _counts_the_next),
    "host tier: what nobody active has is forgotten where it was": (Canary, "let_go", _nothing),
    "host tier: and is known again by its number": (Canary, "let_go", _forgets),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_each_rule_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*LEFT_OUT[name])
    with watching("D", has_host=name.startswith("host tier")) as traffic:
        traffic.done = lambda: traffic.speaks
        traffic.run(20 * STEPS)
        assert traffic.speaks and traffic.contents.corrupt == []


def test_a_fault_of_ours_ends_the_canary_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(Canary, "went_on", fails)
    with watching("D") as traffic:
        traffic.run(STEPS)
        assert "planted" in str(traffic.watched.fault) and "planted" in traffic.report.state
        assert traffic.report.counts == {} and traffic.contents.corrupt == [] and traffic.iterations >= STEPS
