"""Upstream's capacity scheduler sees the right requests: on one rank, and on two whose batches must be equal."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.fixes.ranks import Between, RankComm, on_ranks
from trtllm_kvfix.offload.ledger import link_of, unlink
from trtllm_kvfix.offload.patches import (
    HAS_STARTED,
    ROOM_FOR_LOADS,
    V2_PLACE,
    Choosers,
    Room,
    choosing_from_shown,
    choosing_replacements,
    warn_where_nobody_gives_way,
)
from trtllm_kvfix.overlay.fix import Seam
from trtllm_kvfix.overlay.fuse import IN_A_ROW_MAX, Fuse
from trtllm_kvfix.overlay.upstream import SCHEDULER
from trtllm_kvfix.overlay.vote import Voting
from trtllm_kvfix.ranks import Tag

WINDOW = 64


@dataclass
class Request:
    py_request_id: int
    needs: int  # blocks until its last token
    is_context_init_state: bool = True
    is_first_context_chunk: bool = True
    is_generation_in_progress_state: bool = False


def running(request_id: int, needs: int) -> Request:
    return Request(request_id, needs, is_context_init_state=False, is_generation_in_progress_state=True)


def parked(request_id: int, needs: int) -> Request:
    return Request(request_id, needs, is_context_init_state=False)


@dataclass
class Impl:
    """The bound manager."""

    free: int
    asked: list[int] = field(default_factory=list)

    def get_kv_cache_stats(self) -> Any:
        return SimpleNamespace(num_free_blocks_per_window_size={WINDOW: self.free})

    def get_remaining_blocks_to_completion(self, request: Request, window: int) -> int:
        assert window == WINDOW
        self.asked.append(request.py_request_id)
        return request.needs


def manager(free: int, *, loading: Iterable[int] = (), loaded: Iterable[int] = (), ranks: int = 1) -> Any:
    connector = SimpleNamespace(
        new_async_requests=SimpleNamespace(loading={}),
        pending_async_requests=SimpleNamespace(loading=dict.fromkeys(loading)),
        local_finished_async_requests=SimpleNamespace(loading={}),
        finished_async_loading_requests=dict.fromkeys(loaded),
    )
    mapping = SimpleNamespace(world_size=ranks, pp_size=1, enable_attention_dp=False)
    return SimpleNamespace(impl=Impl(free), kv_connector_manager=connector, mapping=mapping)


def room_of(cache_manager: Any, comm: RankComm | None = None, patience_s: float = 30.0) -> Room:
    fuse = Fuse(ROOM_FOR_LOADS)
    made = Room(fuse, Voting(fuse, Tag.ROOM, find=lambda: comm, patience_s=patience_s))
    made.manager = cache_manager
    return made


def ids(requests: Iterable[Request]) -> list[int]:
    return [each.py_request_id for each in requests]


@pytest.mark.parametrize(
    ("free", "active", "shown"),
    [
        pytest.param(9, [parked(1, 4), Request(2, 5)], [1, 2], id="it fits beside"),
        pytest.param(8, [parked(1, 4), Request(2, 5)], [1], id="it needs one block of another's"),
        pytest.param(8, [Request(2, 5), parked(1, 4)], [1], id="whoever came first"),
        pytest.param(8, [parked(1, 4), Request(2, 5), Request(3, 1)], [1], id="nobody overtakes"),
        pytest.param(9, [parked(1, 2), running(4, 3), Request(2, 5)], [1, 4], id="who runs needs room as well"),
        pytest.param(9, [parked(1, 4), Request(2, 5), Request(3, 1)], [1, 2], id="as many as fit"),
    ],
)
def test_those_are_held_back_for_whom_nothing_is_left(free: int, active: list[Request], shown: list[int]) -> None:
    assert ids(room_of(manager(free, loading=[1])).shown(active)) == shown


def test_who_comes_back_is_seen_before_one_that_has_no_room() -> None:
    """Upstream stops at the first without room, so an older one must not stand before it."""
    active = [Request(2, 20), Request(1, 2)]
    assert ids(room_of(manager(15, loaded=[1])).shown(active)) == [1]
    active[1].is_context_init_state, active[1].is_generation_in_progress_state = False, True
    assert ids(room_of(manager(15, loaded=[1])).shown(active)) == [2, 1], "it runs: upstream counts what it takes"


@pytest.mark.parametrize(
    "cache_manager",
    [
        pytest.param(manager(0), id="nothing loads"),
        pytest.param(manager(0, loaded=[9]), id="a load was over long ago"),
        pytest.param(manager(0, loading=[9]), id="who loads was cancelled"),
    ],
)
def test_nothing_is_asked_where_nobody_needs_room(cache_manager: Any) -> None:
    active = [running(1, 1), Request(2, 5)]
    assert room_of(cache_manager).shown(active) is active
    assert cache_manager.impl.asked == []


def test_nothing_is_asked_where_nobody_waits_to_start() -> None:
    cache_manager = manager(0, loading=[1])
    active = [parked(1, 4), running(2, 1)]
    assert room_of(cache_manager).shown(active) is active
    assert cache_manager.impl.asked == []


def test_another_cache_is_not_its_business() -> None:
    room, other, arguments = room_of(manager(0, loading=[1])), Impl(0), SimpleNamespace()
    link_of(arguments).choosers = Choosers(room)
    seen: list[Any] = []
    scheduler = SimpleNamespace(kv_cache_manager=other)
    active = [parked(1, 4), Request(2, 5)]
    choosing_from_shown(lambda _self, requests: seen.append(ids(requests)))(scheduler, active)
    scheduler.kv_cache_manager = room.manager.impl
    choosing_from_shown(lambda _self, requests: seen.append(ids(requests)))(scheduler, active)
    unlink(id(arguments))
    choosing_from_shown(lambda _self, requests: seen.append(ids(requests)))(scheduler, active)
    assert seen == [[1, 2], [1], [1, 2]]


@dataclass
class Odd:
    """A chooser of another kind."""

    asked: int = 0

    def shown(self, active: Sequence[Any]) -> Sequence[Any]:
        self.asked += 1
        return [each for each in active if each.py_request_id % 2]


def test_others_choose_for_every_kind_of_cache_and_before_the_room() -> None:
    """A scheduler knows the bound half of a V1 manager, and a V2 manager itself, which needs no room."""
    odd, active = Odd(), [parked(1, 4), Request(3, 5), Request(2, 5), Request(4, 5)]
    choosers = Choosers(room_of(manager(9, loading=[1])), [odd])
    assert ids(choosers.shown(choosers.room.manager.impl, active)) == [1, 3]
    assert ids(choosers.shown(choosers.room.manager, active)) == [1, 3] and odd.asked == 2
    for another in (Impl(0), None):
        assert choosers.shown(another, active) is active
    choosers.room.manager = None
    assert choosers.shown(None, active) is active and odd.asked == 2


def test_compiled_schedulers_are_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Compiled:
        schedule_request = sorted  # no function of Python's

    class Plain:
        def schedule_request(self) -> None: ...

    module: Any = ModuleType(SCHEDULER)
    module.BindCapacityScheduler, module.PyCapacityScheduler = Compiled, Plain
    monkeypatch.setitem(sys.modules, SCHEDULER, module)
    assert [each.seam for each in choosing_replacements()] == [Seam(SCHEDULER, "PyCapacityScheduler.schedule_request")]
    assert not caplog.records
    module.PyCapacityScheduler = Compiled
    assert choosing_replacements() == []
    assert "no room is kept" in caplog.text


def test_a_prompt_that_has_loaded_counts_as_started_on_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's scheduler takes blocks from those that have started, and from no others."""

    class Newest:
        def schedule_request(self) -> None: ...

        @staticmethod
        def _is_started_request(req: Any) -> bool:
            return bool(req.is_generation_in_progress_state)

    module: Any = ModuleType(V2_PLACE)
    module.KVCacheV2Scheduler = Newest
    monkeypatch.setitem(sys.modules, V2_PLACE, module)
    (replacement,) = [each for each in choosing_replacements() if each.seam == Seam(V2_PLACE, HAS_STARTED)]
    has_started = replacement.make(Newest._is_started_request)
    prompt, answer = (
        SimpleNamespace(is_context_init_state=not answers, is_generation_in_progress_state=answers)
        for answers in (False, True)
    )
    assert (has_started(prompt), has_started(answer)) == (False, True)  # its build has no connector
    prompt.py_connector_served_position = 0
    assert not has_started(prompt)
    prompt.py_connector_served_position = 8
    assert has_started(prompt)
    del Newest._is_started_request
    assert HAS_STARTED not in [each.seam.path for each in choosing_replacements()]


class GivesWay:
    def __init__(self, kv_cache_manager: Any, enable_recompute_pause: bool = True) -> None: ...


class Keeps:
    def __init__(self, kv_cache_manager: Any) -> None: ...


V1, V2 = SimpleNamespace(), SimpleNamespace(kv_cache_map={})


@pytest.mark.parametrize(
    ("cache_manager", "scheduler", "warns"),
    [(V2, GivesWay, False), (V2, Keeps, True), (V1, Keeps, False), (V2, None, False)],
)
def test_a_scheduler_of_v2_that_takes_no_blocks_back_is_named(
    cache_manager: Any, scheduler: Any, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = ModuleType(V2_PLACE)
    if scheduler is not None:
        module.KVCacheV2Scheduler = scheduler
    monkeypatch.setitem(sys.modules, V2_PLACE, module)
    warn_where_nobody_gives_way(cache_manager)
    assert ("KVCacheV2Scheduler of this TensorRT-LLM" in caplog.text) == warns


@pytest.mark.parametrize("faults", [0, 1, 2 * IN_A_ROW_MAX])
def test_two_ranks_show_the_same_whatever_fails_on_one(faults: int) -> None:
    steps = 8

    def work(rank: int, comm: RankComm) -> list[list[int]]:
        cache_manager = manager(8, loading=[1], ranks=2)
        room = room_of(cache_manager, comm)
        remaining = cache_manager.impl.get_remaining_blocks_to_completion
        left = [faults if rank == 0 else 0]

        def failing(request: Any, window: int) -> int:
            left[0] -= 1
            if left[0] >= 0:
                raise OSError("injected")
            return int(remaining(request, window))

        cache_manager.impl.get_remaining_blocks_to_completion = failing
        return [ids(room.shown([parked(1, 4), Request(2, 5)])) for _ in range(steps)]

    first, second = on_ranks(Between(2), work)
    assert first == second
    kept = [[1, 2]] * (0 if faults == 0 else 1 if faults == 1 else steps)
    assert first == kept + [[1]] * (steps - len(kept))
