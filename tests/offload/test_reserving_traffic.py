"""Traffic of tests/offload/test_traffic.py where upstream reserves prefixes, and takes what it likes of them."""

import pytest

from trtllm_kvfix.metrics import counters

from .conftest import MakeBench
from .reserving import ReservingExecutor, ReservingManager
from .test_traffic import REQUESTS, Traffic


@pytest.mark.parametrize("seed", range(2))
def test_whatever_becomes_of_a_promise_nothing_is_wrong_or_left(seed: int, make_bench: MakeBench) -> None:
    bench = make_bench(
        host_blocks=120, seed=seed, verify="sample", executor_class=ReservingExecutor,
        manager_class=ReservingManager, executor={"blocks": 40, "chunk_tokens": 16, "batch": 4},
    )  # fmt: skip
    traffic, before, executor = Traffic(bench, seed), counters.offload_errors.value, bench.executor
    assert isinstance(executor, ReservingExecutor)

    traffic.turn()
    executor.run(traffic.between)
    bench.settle()
    assert executor.corrupt == []
    assert executor.loaded_tokens > REQUESTS, "the host tier was used"
    assert counters.offload_errors.value > before, "and transfers failed"
    # Whether a request ends while it loads is up to how late the copies are: test_reservations.py plays it.
    assert all(count > 0 for what, count in executor.came_to.items() if what != "ended"), executor.came_to
    side = bench.scheduler.side
    left = len(side._loads.reservations), len(side.ledger), len(side._live), len(side._sources)
    assert (*left, bench.index.stats().owned) == (0, 0, 0, 0, 0)
    assert bench.worker.reservations_to_recompute == {}
