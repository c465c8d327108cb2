"""Scenarios that the ranks of one model go through together, each in a process with a device of its own.

Every rank runs the same scenario and says what it found, as plain values. One rank is slow, or fails, or differs; when
is chosen by gates. Nothing here waits for a time to pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device
from trtllm_kvfix.ranks import Ranks

from .conftest import BLOCK_BYTES, Bench, serve_alone
from .executor import BLOCK_WORDS, MakePool, own_pool
from .faults import FAULTS, heal, transfers_of
from .rank_traffic import RankTraffic
from .upstream_double import Request, State

CHOSEN = 1  # the rank that is slow, or fails, or differs
Report = dict[str, Any]


class Here(NamedTuple):
    """One rank and the device that it drives."""

    ranks: Ranks
    device: Device
    make_pool: MakePool = own_pool

    @property
    def is_chosen(self) -> bool:
        return self.ranks.rank == CHOSEN


@contextmanager
def bench_of(here: Here, host_bytes: int = 256 * BLOCK_BYTES, **sizes: Any) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTLLM_KVFIX_OFFLOAD_HOST_BYTES", str(host_bytes))
        patch.setenv("TRTLLM_KVFIX_OFFLOAD_VERIFY", "all")
        made = Bench(here.device, ranks=here.ranks, **{"make_pool": here.make_pool} | sizes)
        try:
            yield made
        finally:
            made.close()


def serve(bench: Bench, number: int) -> int:
    """Tokens that came from the host tier, when the device has forgotten everything."""
    return serve_alone(bench, conversation(number))


def conversation(number: int) -> Request:
    return Request(number, [7, *range(1, 24)], max_new_tokens=3)


def wait_for_own_transfers(bench: Bench) -> None:
    for running in transfers_of(bench).running():
        assert running.lane is not None and running.lane.wait(running.job.number, 60)


def traffic(here: Here, requests: int = 150) -> Report:
    """Both tiers are too small for it, and each rank's host tier is smaller than the one before."""
    errors = counters.offload_errors.value
    host_bytes = (120 - 8 * here.ranks.rank) * BLOCK_BYTES
    with bench_of(here, host_bytes, blocks=40, chunk_tokens=16, batch=4) as bench:
        run = RankTraffic(bench, here.ranks, requests)
        run.serve()
        report = {
            "corrupt": bench.executor.corrupt,
            "decisions": run.decisions,
            "requests": run.number,
            "reads": bench.executor.reads_checked,
            "loaded_tokens": bench.executor.loaded_tokens,
            "held": run.held,
            "failed": run.failed,
            "slots": bench.worker.side._link.slots,
        }
        if bench.scheduler is not None:
            bench.index.check_invariants()
            report["owned"] = bench.index.stats().owned
            report["errors"] = counters.offload_errors.value - errors
            report["copies_fail"] = bench.device.simulated  # elsewhere a lane is full instead, which is no error
        return report


def slow(here: Here) -> Report:
    """Transfers end everywhere but on one rank, whose stream is held: first a store, then a load."""
    with bench_of(here) as bench:
        executor, device = bench.executor, bench.device
        first, second = conversation(1), conversation(2)
        gate = device.close_gate(executor.stream) if here.is_chosen else None
        executor.submit(first)
        while first.state is not State.SAVING:
            executor.step()
        if gate is None:
            wait_for_own_transfers(bench)
        executor.step()
        executor.forget_device_cache()
        executor.submit(second)
        executor.step()
        while_stored = executor.loaded_tokens
        if gate is not None:
            device.open_gate(gate)
        executor.run()
        afterwards = serve(bench, 3)
        return {"while_stored": while_stored, "afterwards": afterwards, **slow_load(here, bench)}


def slow_load(here: Here, bench: Bench) -> Report:
    executor, device = bench.executor, bench.device
    request = conversation(4)
    executor.forget_device_cache()
    executor.submit(request)
    gate = device.close_gate(executor.stream) if here.is_chosen else None
    executor.step()
    if gate is None:
        wait_for_own_transfers(bench)
    executor.step()
    while_loaded = request.state.name
    if gate is not None:
        device.open_gate(gate)
    executor.run()
    return {"while_loaded": while_loaded, "answered": request.generated, "corrupt": executor.corrupt}


def failing_store(here: Here, fault: str) -> Report:
    with bench_of(here) as bench, pytest.MonkeyPatch.context() as patch:
        if here.is_chosen:
            FAULTS[fault](patch, bench, "store")
        loaded = [serve(bench, 1)]
        patch.undo()
        heal(bench)
        return {"loaded": [*loaded, serve(bench, 2), serve(bench, 3)], "corrupt": bench.executor.corrupt}


def failing_load(here: Here, fault: str) -> Report:
    recomputed = counters.offload_recomputed_requests.value
    with bench_of(here) as bench, pytest.MonkeyPatch.context() as patch:
        loaded = [serve(bench, 1)]
        if here.is_chosen:
            FAULTS[fault](patch, bench, "load")
        loaded.append(serve(bench, 2))
        patch.undo()
        heal(bench)
        loaded.append(serve(bench, 3))
        recomputed = counters.offload_recomputed_requests.value - recomputed
        return {"loaded": loaded, "recomputed": recomputed, "corrupt": bench.executor.corrupt}


def stuck(here: Here) -> Report:
    """A store does not end on one rank, and upstream has given its blocks to another request."""
    with bench_of(here, blocks=8) as bench, pytest.MonkeyPatch.context() as patch:
        executor, gate = bench.executor, None
        if here.is_chosen:
            patch.setattr("trtllm_kvfix.offload.transfers.FENCE_S_MAX", 0.05)
            gate = bench.device.close_gate(executor.stream)
        first = conversation(1)
        executor.submit(first)
        executor.step()
        executor.step()
        executor.preempt(first)
        executor.waiting.insert(0, Request(2, [9, *range(1, 24)], max_new_tokens=2))
        report = {"error": error_of(executor.step)}
        if gate is not None:
            bench.device.open_gate(gate)
        return report


def other_blocks(here: Here) -> Report:
    """The blocks of one rank are larger."""

    def wide_pool(device: Device, blocks: int) -> Any:
        return device.empty((blocks, 2 * BLOCK_WORDS), "uint32")

    make_pool = wide_pool if here.is_chosen else own_pool
    return {"error": error_of(partial(start, here, make_pool=make_pool))}


def no_room(here: Here) -> Report:
    """One rank is configured to hold less than a block."""
    return {"error": error_of(partial(start, here, BLOCK_BYTES // 2 if here.is_chosen else 8 * BLOCK_BYTES))}


def start(here: Here, host_bytes: int = 8 * BLOCK_BYTES, **sizes: Any) -> None:
    with bench_of(here, host_bytes, **sizes):
        pass


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except KvfixError as error:
        return f"{type(error).__name__}: {error}"
    return ""


SCENARIOS: dict[str, Callable[[Here], Report]] = {
    "traffic": traffic,
    "slow": slow,
    "a copy of a store fails": partial(failing_store, fault="the copy fails"),
    "a copy of a load fails": partial(failing_load, fault="the copy fails"),
    "a store is refused": partial(failing_store, fault="the queue is full"),
    "a load is refused": partial(failing_load, fault="the queue is full"),
    "stuck": stuck,
    "other blocks": other_blocks,
    "no room": no_room,
}
