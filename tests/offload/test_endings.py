"""A copy thread that ends, a host tier that is full of blocks under way: requests go on, and nothing is left behind."""

from contextlib import ExitStack

import pytest

from trtllm_kvfix.metrics import counters

from .conftest import Bench, MakeBench
from .faults import transfers_of
from .upstream_double import Request


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


def held(bench: Bench) -> ExitStack:
    """The device does nothing until this is closed, which it is at the latest when nobody has it any more."""
    gate, stack = bench.device.close_gate(bench.executor.stream), ExitStack()
    stack.callback(bench.device.open_gate, gate)
    return stack


def require_all_given_back(bench: Bench) -> None:
    bench.settle()
    assert bench.executor.corrupt == []
    bench.index.check_invariants()
    bench.index.drop()
    assert bench.index.stats().free == bench.index.slots
    assert len(bench.scheduler.side._sources) == 0
    assert bench.worker.shutdown()
    assert counters.offload_pinned_bytes.value == 0


@pytest.mark.parametrize("direction", ["store", "load"])
def test_requests_end_though_a_copy_thread_ends_while_it_has_transfers(direction: str, make_bench: MakeBench) -> None:
    bench = make_bench()
    executor = bench.executor
    executor.submit(*(Request(number, prompt(number), max_new_tokens=2) for number in (1, 2)))
    executor.run()
    executor.forget_device_cache()
    gate = held(bench)
    again = [Request(number, prompt(number - 10), max_new_tokens=2) for number in (11, 12)]  # they load
    executor.submit(*again, Request(13, prompt(13), max_new_tokens=2))  # this one is stored
    for _ in range(6):
        executor.step()
    lane = getattr(transfers_of(bench), f"_{direction}s")
    under_way = lane.stats().queued + lane.stats().in_flight
    lane.close(0.01)  # what waits in its queue is refused; what the device has, it keeps until it is over
    gate.close()
    assert under_way > 0
    executor.run()
    assert [request.generated for request in again] == [2, 2]
    require_all_given_back(bench)


def test_requests_end_though_every_host_block_is_under_way(make_bench: MakeBench) -> None:
    bench, dropped = make_bench(host_blocks=6), counters.offload_dropped_blocks.value
    executor = bench.executor
    gate = held(bench)
    requests = [Request(number, prompt(number), max_new_tokens=2) for number in range(1, 5)]
    executor.submit(*requests)
    for _ in range(6):
        executor.step()
    gate.close()
    assert counters.offload_dropped_blocks.value > dropped
    executor.run()
    assert [request.generated for request in requests] == [2] * 4
    require_all_given_back(bench)


def test_a_store_may_outlive_the_last_request(make_bench: MakeBench) -> None:
    """Upstream does not report that it preempts, and a request that is cancelled while it waits ends at once."""
    bench = make_bench()
    executor, request = bench.executor, Request(1, prompt(1), max_new_tokens=9)
    gate = held(bench)
    executor.submit(request)
    while not transfers_of(bench).running():
        executor.step()
    executor.preempt(request)
    executor.cancel(request)
    assert not (executor.waiting or executor.active)
    bench.take_note()
    assert bench.index.stats().owned > 0, "the copy has not ended"
    gate.close()
    bench.settle()
    assert bench.index.stats().owned == 0
    require_all_given_back(bench)
