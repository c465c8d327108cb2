"""Prefixes that upstream reserves while it schedules: every end of a reserved request frees what was reserved for it.

The same on upstream's own connector manager and V2 manager: integration/upstream/reserved_loads.py.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload import patches
from trtllm_kvfix.offload.ledger import Ended, LoadJob
from trtllm_kvfix.offload.patches import end_loads
from trtllm_kvfix.offload.transfers import ByGroup

from .conftest import Bench, MakeBench, serve_alone
from .ends import jobs, planned
from .test_promises import prompt
from .upstream_double import Request, RequestData

NUMBER = 7  # of the reservation
BLOCKS = list(range(10, 16))
MORE = list(range(30, 36))  # of a second layer group


class Accepted(NamedTuple):
    """Upstream reports a load that it has accepted in this form."""

    reservation_id: int
    request_id: int
    start: int
    end: int
    is_async: bool
    block_ids_by_layer_group: ByGroup
    tokens: list[int]
    cache_salt: str | None = None


class Output:
    def __init__(self, *loads: Accepted, cached: list[RequestData] | None = None) -> None:
        self.new_requests: list[RequestData] = []
        self.cached_requests = cached or []
        self.prefix_loads = list(loads)


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """The host tier has five blocks of a prompt."""
    made = make_bench()
    serve_alone(made, Request(1, prompt(1)))
    return made


@pytest.fixture
def request_2(bench: Bench) -> Request:
    """Reserved for; nothing of it is on the device."""
    made = Request(2, prompt(1))
    assert bench.scheduler.reserve_prefix(made, 0, NUMBER) == (20, True)
    assert bench.index.stats().owned == 5
    return made


def release(bench: Bench, request: Request, start: int, end: int) -> None:
    bench.scheduler.release_prefix_reservation(request, NUMBER, start, end)


def reserved(bench: Bench) -> int:
    side = bench.scheduler.side
    return len(side._loads.reservations) + sum(load.reservation is not None for load in jobs(side.ledger, LoadJob))


def accepted(bench: Bench, request: Request, end: int = 20) -> Output:
    """Upstream has room, and says so; the report is not built yet."""
    if end < 20:
        release(bench, request, end, 20)
    bench.scheduler.update_state_after_alloc(request, BLOCKS)
    return Output(Accepted(NUMBER, request.request_id, 0, end, True, [BLOCKS], request.tokens))


def bind(bench: Bench, output: Output) -> Any:
    step = bench.scheduler.build_connector_meta(output)
    bench.worker.bind_connector_meta(step)
    return step


def end(bench: Bench) -> list[int]:
    """Ends all transfers that have begun."""
    bench.worker.get_finished([], [])
    bench.wait_for_transfers()
    bench.worker.get_finished([], [])
    finished: list[int] = bench.worker.get_finished_prefix_loads()
    bench.take_note()
    return finished


def nothing_is_left(bench: Bench) -> bool:
    bench.index.check_invariants()
    return (reserved(bench), bench.index.stats().owned, len(bench.scheduler.side._sources)) == (0, 0, 0)


def test_what_upstream_releases_is_free_part_by_part(bench: Bench, request_2: Request) -> None:
    owned = []
    for start, behind in ((16, 20), (0, 4), (4, 16)):
        release(bench, request_2, start, behind)
        owned.append(bench.index.stats().owned)
    assert owned == [4, 3, 0]
    assert nothing_is_left(bench)
    release(bench, request_2, 4, 16)
    bench.scheduler.request_reset(request_2)
    assert nothing_is_left(bench)


def test_a_block_stays_for_every_token_that_is_still_promised(bench: Bench) -> None:
    request = Request(2, prompt(1))
    assert bench.scheduler.reserve_prefix(request, 6, NUMBER) == (14, True)
    assert bench.index.stats().owned == 4
    release(bench, request, 18, 20)
    assert bench.index.stats().owned == 4
    release(bench, request, 16, 18)
    assert bench.index.stats().owned == 3
    release(bench, request, 6, 16)
    assert nothing_is_left(bench)


@pytest.mark.parametrize("end_of_it", [20, 12])
def test_what_is_accepted_is_loaded_with_the_report_and_not_before(
    end_of_it: int, bench: Bench, request_2: Request
) -> None:
    output = accepted(bench, request_2, end_of_it)
    assert planned(bench.scheduler.side.ledger, LoadJob) == []
    (job,) = bind(bench, output).loads
    assert (job.blocks, job.position) == (tuple(BLOCKS[: end_of_it // 4]), 0)
    assert bench.worker.get_finished_prefix_loads() == []
    bench.worker.start_load_kv(bench.executor.stream)
    assert end(bench) == [NUMBER]
    assert bench.worker.reservations_to_recompute == {}
    assert bench.worker.get_finished_prefix_loads() == []
    release(bench, request_2, 0, end_of_it)
    assert nothing_is_left(bench)


@pytest.mark.parametrize("groups", [[BLOCKS, MORE], {1: MORE, 0: BLOCKS}])
def test_blocks_of_layer_groups_come_as_lists_and_by_number(groups: ByGroup, bench: Bench, request_2: Request) -> None:
    bench.scheduler.update_state_after_alloc_by_layer_group(request_2, groups)
    output = Output(Accepted(NUMBER, 2, 0, 20, True, groups, request_2.tokens))
    (job,) = bench.scheduler.build_connector_meta(output).loads
    assert job.blocks == (*BLOCKS[:5], *MORE[:5])


def test_a_load_that_is_taken_back_never_begins(bench: Bench, request_2: Request) -> None:
    before = counters.offload_loaded_bytes.value
    output = accepted(bench, request_2)
    (job,) = bind(bench, output).loads
    release(bench, request_2, 0, 20)
    assert bench.index.stats().owned == 5, "the other ranks have not been told"
    output.prefix_loads = []
    step = bind(bench, output)
    assert (step.loads, step.taken_back) == ((), (job.number,))
    bench.scheduler.request_reset(request_2)
    bench.worker.start_load_kv(bench.executor.stream)
    assert end(bench) == []
    assert counters.offload_loaded_bytes.value == before
    assert bench.worker.reservations_to_recompute == {}
    assert nothing_is_left(bench)


def test_a_report_that_is_told_again_tells_of_nothing_new(bench: Bench, request_2: Request) -> None:
    """Upstream takes back one load of several, and builds the rest of the step once more."""
    other = Request(3, prompt(3))
    bench.scheduler.reserve_prefix(other, 0, NUMBER + 1)
    bench.scheduler.update_state_after_alloc(other, [20, 21, 22, 23, 24, 25])
    bind(bench, Output())
    output = accepted(bench, request_2)
    output.cached_requests = [RequestData(3, [30, 31], [26], 24, 1)]
    live = bench.scheduler.side._live[3]
    assert len(bind(bench, output).loads) == 1
    known = live.length, [list(group) for group in live.blocks]
    step = bind(bench, output)
    assert not step
    assert (live.length, live.blocks) == known


@pytest.mark.parametrize("way", ["reset", "finished", "without a word"])
def test_a_request_that_ends_before_it_has_room_frees_its_reservation(
    way: str, bench: Bench, request_2: Request
) -> None:
    """Upstream resets it, finishes it, or frees its blocks without a word to the connector."""
    if way == "reset":
        bench.scheduler.request_reset(request_2)
    elif way == "finished":
        assert not bench.scheduler.request_finished(request_2, [])
    else:
        bench.worker.side.request_over(request_2.request_id)
    assert nothing_is_left(bench)
    release(bench, request_2, 0, 20)
    assert nothing_is_left(bench)


def test_a_request_that_is_reserved_for_anew_has_one_reservation(bench: Bench, request_2: Request) -> None:
    """Nobody released the first."""
    assert bench.scheduler.reserve_prefix(request_2, 0, NUMBER + 1) == (20, True)
    assert (reserved(bench), bench.index.stats().owned) == (1, 5)
    bench.scheduler.release_prefix_reservation(request_2, NUMBER + 1, 0, 20)
    assert nothing_is_left(bench)


def test_a_request_that_ends_while_it_loads_ends_its_load(bench: Bench, request_2: Request) -> None:
    """It ends by an error: upstream would refuse to free what it still waits for."""
    bind(bench, accepted(bench, request_2))
    finished: list[list[int]] = []
    connector = SimpleNamespace(
        worker=bench.worker, _dispatched_prefix_load_ids={NUMBER}, _local_finished_prefix_load_ids=set(),
        _prefix_loads={NUMBER: SimpleNamespace(request_id=2)}, finish_prefix_loads=finished.append,
        finished_async_loading_requests={2: request_2},
    )  # fmt: skip
    bench.worker.start_load_kv(bench.executor.stream)
    manager = SimpleNamespace(kv_cache_map={})
    keeper = patches.KeptBlocks(bench.worker.side)
    assert not keeper.keeps(connector, manager, request_2)
    assert finished == [[NUMBER]]
    assert connector._local_finished_prefix_load_ids == {NUMBER}
    assert connector.finished_async_loading_requests == {}
    assert end(bench) == [], "nobody waits for it any more"
    assert nothing_is_left(bench)


def test_of_what_has_not_begun_nothing_is_ended_for_upstream() -> None:
    loads = {NUMBER: SimpleNamespace(request_id=2)}
    end_loads(SimpleNamespace(_prefix_loads=loads, _dispatched_prefix_load_ids=set()), Request(2, prompt(1)))
    assert loads


def test_a_load_of_a_promise_that_is_gone_ends_and_brings_nothing(bench: Bench, request_2: Request) -> None:
    output = accepted(bench, request_2)
    bench.worker.side.request_over(2)
    (job,) = bind(bench, output).loads
    assert (job.blocks, job.slots) == ((), ())
    bench.worker.start_load_kv(bench.executor.stream)
    assert end(bench) == [NUMBER]
    assert bench.worker.reservations_to_recompute == {NUMBER: 2}
    assert nothing_is_left(bench)


def test_a_load_that_fails_on_its_way_is_told_as_over(bench: Bench, request_2: Request) -> None:
    (job,) = bind(bench, accepted(bench, request_2)).loads
    transfers = bench.worker.side._transfers
    taken = transfers.take_ended
    bench.worker.start_load_kv(bench.executor.stream)
    transfers.take_ended = lambda: [Ended(one.job, "planted" if one.job == job.number else "") for one in taken()]
    assert end(bench) == [NUMBER]
    assert bench.worker.reservations_to_recompute == {NUMBER: 2}
    assert nothing_is_left(bench)


def test_what_is_found_is_counted_once_however_often_upstream_asks(bench: Bench) -> None:
    request = Request(2, prompt(1))
    before = counters.offload_prompt_tokens.value, counters.offload_host_hit_tokens.value
    for number in range(3):
        bench.scheduler.reserve_prefix(request, 0, number)
        bench.scheduler.release_prefix_reservation(request, number, 0, 20)
        bench.scheduler.request_reset(request)
    bench.scheduler.reserve_prefix(request, 0, NUMBER)
    bind(bench, accepted(bench, request, 12))

    def counted() -> tuple[float, float]:
        after = counters.offload_prompt_tokens.value, counters.offload_host_hit_tokens.value
        return after[0] - before[0], after[1] - before[1]

    assert counted() == (24, 0), "a promise is no hit"
    bench.worker.start_load_kv(bench.executor.stream)
    assert end(bench) == [NUMBER]
    assert counted() == (24, 12)


def test_a_request_that_is_left_alone_is_counted_once(bench: Bench) -> None:
    request = Request(2, prompt(1), sampling_config=SimpleNamespace(beam_width=2))
    before = counters.offload_requests_skipped.value
    for number in range(3):
        assert bench.scheduler.reserve_prefix(request, 0, number) == (0, False)
        bench.scheduler.request_reset(request)
    bench.scheduler.update_state_after_alloc(request, BLOCKS)
    assert counters.offload_requests_skipped.value == before + 1


def test_nothing_is_reserved_for_a_prompt_that_nobody_had_or_that_failed_before(bench: Bench) -> None:
    request = Request(2, prompt(2))
    assert bench.scheduler.reserve_prefix(request, 0, NUMBER) == (0, False)
    request = Request(3, prompt(1))
    setattr(request, patches.LOADS_NO_MORE, True)
    assert bench.scheduler.reserve_prefix(request, 0, NUMBER) == (0, False)
    assert nothing_is_left(bench)
