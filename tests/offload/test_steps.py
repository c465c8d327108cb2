"""An iteration in which nothing is new takes as many steps of the interpreter with many jobs under way as with few."""

import gc
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.offload.ledger import Link, PutJob, Step, StoreJob
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings

from .rank_threads import Rank, ThreadRanks
from .remote import conftest as remote
from .remote.conftest import MakeRemote
from .upstream_double import Request, RequestData, SchedulerOutput

FEW, MANY = 4, 200  # fewer than a lane's queue has room for
make_bench, make_remote, memory = remote.make_bench, remote.make_remote, remote.memory


def steps_of(call: Callable[[], Any]) -> int:
    """Without those of the garbage collector, which runs what other tests have left to it."""
    gc.collect()
    gc.disable()
    try:
        return steps_traced(call)
    finally:
        gc.enable()


def steps_traced(call: Callable[[], Any]) -> int:
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


def test_steps_are_counted() -> None:
    many, few = (steps_of(lambda jobs=range(jobs): [-job for job in jobs]) for jobs in (MANY, FEW))  # type: ignore[misc]
    assert many > few


def steps_with_stores(number: int) -> int:
    """Counts the steps of an iteration in which the device has these stores. Their requests have ended, and keep their
    blocks."""
    rank = Rank(ThreadRanks(1), 0)
    rank.worker.register(rank.device, [rank.pool])
    gate = rank.device.close_gate(rank.stream)
    try:
        rank.worker.bind(Step(tuple(StoreJob(each, 7, (0, 1), (3, 4)) for each in range(1, number + 1))))
        rank.worker.start(rank.stream)
        rank.worker.finished([7], [])
        rank.link.plan_late = lambda _: pytest.fail("there is nothing to ask")
        rank.worker._saving[7] = True

        def iteration() -> None:
            rank.worker.bind(Step())
            rank.worker.start(rank.stream)
            assert rank.worker.finished([], []) == ([], [])

        iteration()
        return steps_of(iteration)
    finally:
        rank.device.open_gate(gate)
        assert rank.worker.close()


def test_transfers_that_the_device_has_are_not_looked_at() -> None:
    assert steps_with_stores(MANY) == steps_with_stores(FEW)


def steps_of_ends(number: int) -> tuple[int, int]:
    """Count the steps of the last of many requests that end in one iteration, and of giving its blocks away."""
    link = Link()
    link.slots = 4 * MANY
    side = OffloadScheduler(OffloadSettings(log_every_requests=0), 4, link, Switches(None))
    requests = [Request(each, [each, *range(1, 8)]) for each in range(number)]
    report = SchedulerOutput()
    for request in requests:
        side.get_num_new_matched_tokens(request, 0)
        blocks = [2 * request.request_id, 2 * request.request_id + 1]
        side.update_state_after_alloc(request, [blocks])
        report.new_requests.append(RequestData(request.request_id, request.tokens, blocks, 0, 8))
    side.build_connector_meta(report)
    last = requests.pop()
    last.context_current_position = 8
    for request in requests:
        request.context_current_position = 8
        assert side.request_finished(request, [[2 * request.request_id, 2 * request.request_id + 1]])
    finished = steps_of(lambda: side.request_finished(last, [[2 * last.request_id, 2 * last.request_id + 1]]))
    over = steps_of(lambda: side.request_over(last.request_id, False))
    assert len(link.ledger.of(StoreJob)) == number - 1
    return finished, over


def test_requests_that_end_at_once_do_not_look_at_one_another() -> None:
    assert steps_of_ends(MANY) == steps_of_ends(FEW)


def test_blocks_that_are_given_away_wait_for_their_own_transfers_alone() -> None:
    def steps(number: int) -> int:
        rank = Rank(ThreadRanks(1), 0)
        rank.worker.register(rank.device, [rank.pool])
        rank.worker.bind(Step(tuple(StoreJob(each, each, (0, 1), (3, 4)) for each in range(1, number + 1))))
        try:
            return steps_of(lambda: rank.worker.end_transfers_here(1))
        finally:
            assert rank.worker.close()

    assert steps(MANY) == steps(FEW)


def test_puts_that_wait_are_not_looked_at(make_remote: MakeRemote) -> None:
    bench = make_remote()
    side, scheduler = bench.worker.side, bench.scheduler.side
    side.carrier.porter.holds_puts = side.carrier.porter.holds_gets = True

    def iteration() -> None:
        scheduler.build_connector_meta(SimpleNamespace(new_requests=[], cached_requests=[]))
        side.finished([], [])

    steps = []
    for numbers in (range(1, FEW), range(FEW, MANY)):
        side.bind(Step(tuple(PutJob(each, 7, (b"key",), (3,)) for each in numbers)))
        iteration()
        steps.append(steps_of(iteration))
    assert len(side.carrier.porter.asked) == MANY - 1 and steps[0] == steps[1]
