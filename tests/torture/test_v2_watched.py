"""The canary beside a V2 manager under attack: silent where all is right, and loud where it is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from integration.upstream.v2_pages import LifeCycle
from tests.canary.blind import blind
from tests.fixes.applied import applied
from tests.torture.engines import SEED, needed
from trtllm_kvfix.canary.canary import CanaryReport, Finding
from trtllm_kvfix.managers import watched_v2
from trtllm_kvfix.managers.watched import filled_of
from trtllm_kvfix.native import DeviceError, FillBooks

from . import v2_books, v2_watched
from .v2_attack import SILENT_STEPS, STEPS, Attack, Way, attacked
from .v2_books import Levels, OurLevels
from .v2_watched import WrongWrites, watching

SPEAKS_WITHIN = 50
LENGTHS = (60, 300, 1000, 3000)
NOT_AWAITED = Way("F", awaited=False, guesses=(0,))
WAYS = [Way("F", overlap=overlap, guesses=(0,)) for overlap in (True, False)] + [NOT_AWAITED]
DRAFTING = [Way("F"), Way("F", overlap=False), Way("F", awaited=False), Way("F", draft=True)]
BESIDE_A_HOST_TIER = pytest.mark.parametrize("has_host", [True, False], ids=["host tier", "device alone"])


def name_of(way: Way) -> str:
    return str(way) if way in WAYS else f"{way}, drafts"


class Played:
    def __init__(self, attack: Attack, watched: watched_v2.WatchedV2, writes: WrongWrites) -> None:
        self.reports: list[CanaryReport] = [group.canary.report() for group in watched.groups]
        self.fault = watched.fault
        self.wrong_writes = writes.steps
        self.wrong_reads = attack.contents.wrong

    @property
    def findings(self) -> list[Finding]:
        return [each for report in self.reports for each in report.findings]

    @property
    def first_word(self) -> int:
        return min((each.wrong_at for each in self.findings), default=0)


def on_device_alone(size: int, pages: int, _: int) -> Levels:
    return OurLevels(size, 3 * pages, 0)


@contextmanager
def nothing_slides() -> Iterator[None]:
    """Then requests rest, also beside a host tier."""
    whole = (LifeCycle(None), LifeCycle(None))
    with mock.patch.object(v2_books, "SLIDING", whole), mock.patch.object(v2_watched, "SLIDING", whole):
        yield


@contextmanager
def prepared(way: Way, *, fixed: bool, has_host: bool, slides: bool = True, blocks_per_step: int = 8) -> Iterator[Any]:
    make = OurLevels if has_host else on_device_alone
    knows_all = not has_host and not any(way.guesses)  # as `hears_all` has it
    with (
        nullcontext() if slides else nothing_slides(),
        way.build(),
        applied(needed(way.variant) if fixed else []),
        attacked(way, SEED, make, loading=0) as attack,
        watching(attack, blocks_per_step, knows_all=knows_all) as (watched, writes),
    ):
        if not has_host:
            attack.rebalance = lambda: None
        yield SimpleNamespace(attack=attack, watched=watched, played=lambda: Played(attack, watched, writes))


def play(way: Way, steps: int, **options: Any) -> Played:
    with prepared(way, **options) as ready:
        ready.attack.run(steps)
        played: Played = ready.played()
        return played


@pytest.mark.parametrize("slides", [True, False], ids=["a window", "no window"])
@BESIDE_A_HOST_TIER
@pytest.mark.parametrize("way", WAYS + DRAFTING, ids=name_of)
def test_it_is_silent_where_all_is_right(way: Way, has_host: bool, slides: bool) -> None:
    played = play(way, SILENT_STEPS, fixed=True, has_host=has_host, slides=slides)
    assert (played.findings, played.fault, played.wrong_reads) == ([], None, [])
    for report in played.reports:
        wanted = {"reused", "freed", "live"} | ({"returned"} if has_host else set())
        assert {each for each, count in report.blocks_compared.items() if count > SILENT_STEPS // 15} >= wanted
        assert report.blocks_taken > SILENT_STEPS


def test_beside_a_host_tier_a_late_word_of_further_blocks_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    add: Any = watched_v2._RestingUntil.add
    monkeypatch.setattr(watched_v2._RestingUntil, "add", lambda self, *args: add(self, *args[:-1], args[-1] + 9))
    monkeypatch.setattr(watched_v2, "ASKED_MAX", 1)
    played = play(WAYS[0], 3 * STEPS, fixed=True, has_host=True, slides=False)
    assert (played.findings, played.fault, played.wrong_reads) == ([], None, [])


@BESIDE_A_HOST_TIER
@pytest.mark.parametrize("blocks_per_step", [8, 64])
@pytest.mark.parametrize("way", [*WAYS, DRAFTING[2]], ids=name_of)
def test_it_speaks_soon_after_the_first_wrong_write_into_a_complete_block(
    way: Way, blocks_per_step: int, has_host: bool
) -> None:
    played = play(way, 100, fixed=False, has_host=has_host, blocks_per_step=blocks_per_step)
    assert played.wrong_writes
    assert 0 < played.first_word <= played.wrong_writes[0] + SPEAKS_WITHIN


def test_without_the_comparison_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch)
    played = play(NOT_AWAITED, 100, fixed=False, has_host=True)
    assert played.findings == [] and played.wrong_writes


def _nothing(*_: Any, **__: Any) -> None:
    """Of what is left out."""


HEAR, TAKES = watched_v2.WatchedV2._hear, watched_v2.WatchedGroup.takes


def _hears_slots_first(self: watched_v2.WatchedV2, is_last: bool) -> None:
    with mock.patch.object(self, "_tell_writes"):
        HEAR(self, is_last)
    self._tell_writes(self._asked)


def _rests_while_it_is_written(_self: watched_v2.WatchedV2, _request_id: int, one: watched_v2._Followed) -> bool:
    return one.request is not None and not one.is_away


def _takes_all_for_equal(self: watched_v2.WatchedGroup, request_id: int, taken: Any, _: int) -> None:
    TAKES(self, request_id, taken, 1 << 30)


def _goes_by_lengths(self: watched_v2.WatchedV2, one: watched_v2._Followed, blocks: int, committed: int) -> bool:
    return blocks == one.blocks and committed == one.committed and self._may_rest


def _counts_drafts(request: Any) -> int:
    return filled_of(request) + (0 if request.context_remaining_length else len(request.py_draft_tokens))


# What a correct server does to complete blocks, and the rule that keeps the canary from taking it for a change.
LEFT_OUT: dict[str, tuple[bool, Any, str, Callable[..., Any]]] = {
    "a request that rests is suspended": (True, watched_v2.WatchedV2, "_wake_absent", _nothing),
    "one that rests is suspended before another ends": (True, watched_v2._Resting, "inactive", lambda *_: []),
    "its prompt is committed when it rests": (
        False, watched_v2.WatchedV2, "_can_rest", _rests_while_it_is_written,
    ),
    "one that rests is asked again": (False, watched_v2._Resting, "due", lambda *_: []),
    "what nobody active has is forgotten": (True, watched_v2.WatchedGroup, "_let_go", _nothing),
    "a resume in between": (True, watched_v2.WatchedV2, "resumed", _nothing),
    "a suspended request's slots are given away": (True, watched_v2.WatchedV2, "_leaves", _nothing),
    "drafts: a block was given back, and another got": (False, watched_v2.WatchedV2, "_keeps", _goes_by_lengths),
    "drafts: what was got for it is no equal block": (False, watched_v2.WatchedGroup, "takes", _takes_all_for_equal),
    "drafts: they are not kept for certain": (True, watched_v2, "filled_of", _counts_drafts),
    "what was written is heard before who has slots": (False, watched_v2.WatchedV2, "_hear", _hears_slots_first),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_each_rule_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has_host, *place = LEFT_OUT[name]
    monkeypatch.setattr(*place)
    # Most speak in 60 steps, and some seeds take one of them a thousand.
    way, slides = (DRAFTING if name.startswith("drafts") else WAYS)[0], not ("rests" in name or "given back" in name)
    runs = (play(way, steps, fixed=True, has_host=has_host, slides=slides) for steps in LENGTHS)
    played = next((each for each in runs if each.findings), None)
    assert played is not None and played.wrong_reads == []


def test_a_fault_of_ours_ends_all_canaries_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(FillBooks, "replaced", fails)
    played = play(WAYS[0], 100, fixed=True, has_host=True)
    assert played.fault is not None and "planted" in played.fault
    assert all("planted" in report.state for report in played.reports) and played.wrong_reads == []


# Those of the looks, and those of the order between two streams.
DEVICE_CALLS = ("send", "arrived", "record", "make_wait")


def _raises(*_: Any) -> None:
    raise DeviceError("planted")


@BESIDE_A_HOST_TIER
@pytest.mark.parametrize("name", DEVICE_CALLS)
def test_a_device_call_that_fails_ends_all_canaries_and_not_the_server(
    name: str, has_host: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with prepared(WAYS[0], fixed=True, has_host=has_host) as ready:
        ready.attack.run(40)
        assert ready.played().fault is None
        ring, device = ready.watched.groups[0].canary._ring, ready.watched._order._device
        setattr(ring if hasattr(ring, name) else device, name, _raises)
        ready.attack.run(80)
        played = ready.played()
        assert ready.attack.server.witness.steps >= 80
    assert played.wrong_reads == [] and played.findings == []
    assert played.fault is not None and "planted" in played.fault
    assert all("stood down" in report.state for report in played.reports)
    assert "the canary stands down" in caplog.text
