"""Every wait has a bound, and the host pool is given back by whoever ends the connector, or forgets to."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from tests import fresh
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.transfers import StuckTransfer
from trtllm_kvfix.offload.worker import Loading

from .conftest import Bench, MakeBench
from .faults import transfers_of
from .upstream_double import Request


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


def test_the_pool_goes_with_a_worker_that_upstream_forgets(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.executor.submit(Request(1, prompt(1)))
    bench.executor.run()
    assert counters.offload_pinned_bytes.value > 0
    bench.executor.close()
    bench.executor.idle = lambda: None
    bench.is_unplugged = True
    bench.worker = bench.manager.worker = None
    gc.collect()
    assert counters.offload_pinned_bytes.value == 0


SERVER_THAT_ENDS = """
import gc, sys, threading
from time import monotonic
from weakref import ref
from tests.offload.stand_in import offloading

with offloading(sys.argv[1], 64, 64) as server:
    server.run([server.request(1, [1, 2, 3, 4, 5, 6], 4)])
    assert server.worker.cache_manager is server.manager
    worker = ref(server.worker)
del server
until = monotonic() + 20  # threads that are about to end hold what they ran
while worker() is not None and monotonic() < until:
    gc.collect()
    threading.Event().wait(0.01)
print(worker() is None)
"""


@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_a_server_that_is_over_keeps_no_worker(variant: str) -> None:
    """Upstream's cache manager has the connector in its C++, which the garbage collector cannot look into. In an
    interpreter of its own, where no test keeps what a log line was made of."""
    done = fresh.run([sys.executable, "-c", SERVER_THAT_ENDS, variant], cwd=fresh.ROOT)
    assert done.stdout == "True\n", done.stderr


def test_ending_it_twice_is_harmless(make_bench: MakeBench) -> None:
    bench = make_bench()
    assert bench.worker.shutdown()
    assert bench.worker.shutdown()
    assert counters.offload_pinned_bytes.value == 0


def under_way(bench: Bench) -> Callable[[], None]:
    """A store that the device does not end, and that nothing waits for; until this is called."""
    bench.executor.submit(Request(1, prompt(1), max_new_tokens=9))
    for _ in range(2):
        bench.executor.step()
    gate = bench.device.close_gate(bench.executor.stream)
    for _ in range(2):
        bench.executor.step()
    bench.executor.submit(Request(2, prompt(2), max_new_tokens=9))
    for _ in range(3):
        bench.executor.step()
    assert transfers_of(bench).running()
    return lambda: bench.device.open_gate(gate)


@pytest.mark.parametrize("limit_s", [1e-6, 1000])
def test_a_transfer_that_never_ends_is_an_error_with_its_reason(
    limit_s: float, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_kvfix.offload.transfers.FENCE_S_MAX", 0.01)
    bench = make_bench(transfer_timeout_s=1000)
    release = under_way(bench)
    transfers = transfers_of(bench)
    transfers._settings = transfers._settings.model_copy(update={"transfer_timeout_s": limit_s})
    try:
        if limit_s < 1:
            with pytest.raises(StuckTransfer, match=r"request [12] is (queued|in flight) after .*transfer_timeout_s"):
                bench.executor.step()
        else:
            bench.executor.step()
    finally:
        release()


def test_a_transfer_that_ended_while_the_process_slept_is_none(make_bench: MakeBench) -> None:
    bench = make_bench(transfer_timeout_s=1000)
    release = under_way(bench)
    transfers = transfers_of(bench)
    transfers._settings = transfers._settings.model_copy(update={"transfer_timeout_s": 1e-6})
    release()
    bench.executor.run()
    assert bench.executor.corrupt == []


def test_a_load_that_nobody_plans_is_an_error_with_its_reason(make_bench: MakeBench) -> None:
    bench = make_bench(transfer_timeout_s=0.5)
    bench.worker.side._loading[5] = Loading(since=monotonic() - 1)
    with pytest.raises(KvfixError, match=r"request 5 has waited for a load .*upstream did not report"):
        bench.worker.get_finished([], [])


def test_a_forked_child_has_none_of_the_pool(make_bench: MakeBench) -> None:
    bench = make_bench()
    address = transfers_of(bench)._pool.address
    flags = ""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        first, _, _ = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and line.startswith("VmFlags:"):
            flags = line
    assert " dc" in flags, "do not copy on fork"
