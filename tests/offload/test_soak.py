"""Many requests, and memory that stays flat: what a request has left behind would add up.

KVFIX_SOAK_REQUESTS sets how many; `make ci-long` takes 200,000 of each kind.
"""

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest

from .conftest import Bench, MakeBench
from .remote.conftest import make_remote, memory
from .remote.porter_double import Key
from .upstream_double import Request, State

__all__ = ["make_remote", "memory"]

REQUESTS = int(os.environ.get("KVFIX_SOAK_REQUESTS", "600"))
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
AT_ONCE = 4
LAST_STEPS_MAX = 100  # until what the last requests have begun is over
READS_EVERY = 100  # requests; the double keeps all that attention reads until it is compared
STORE_MAX = 500  # objects, as a store has a size
GROWTH_KIB_MAX = 6 * 1024  # of the second half: an allocator needs a while until it has what it needs


def resident_kib() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB


class Soak:
    """Prompts that come back, and others that never do; a few are cancelled."""

    def __init__(self, bench: Bench, store: dict[Key, bytes]) -> None:
        self.bench, self.store, self.random, self.number = bench, store, random.Random(3), 0

    def run(self, requests: int) -> None:
        executor = self.bench.executor
        for _ in range(requests // AT_ONCE):
            made = [self._request() for _ in range(AT_ONCE)]
            executor.submit(*made)
            if self.random.random() < 0.1:
                executor.cancel(made[0])
            executor.run()
            assert all(request.state is State.GONE for request in made)
            executor.done.clear()  # the double's own
            while len(self.store) > STORE_MAX:
                del self.store[next(iter(self.store))]
            if self.number % READS_EVERY == 0:
                executor.check_reads()
        self._end_what_runs()
        executor.check_reads()
        assert executor.corrupt == []

    def _end_what_runs(self) -> None:
        """Iterations without a request, in which the ends of stores and puts arrive: then nothing is left."""
        for _ in range(LAST_STEPS_MAX):
            if not self.bench.scheduler.side.ledger:
                return
            self.bench.wait_for_transfers()
            self.bench.executor.step()
        raise AssertionError(f"still there after {LAST_STEPS_MAX} steps: {list(self.bench.scheduler.side.ledger)}")

    def _request(self) -> Request:
        self.number += 1
        returns = self.random.random() < 0.5
        first = self.random.randrange(20) if returns else 1000 + self.number
        return Request(self.number, [first, *range(1, self.random.randrange(8, 40))], max_new_tokens=3)

    def sizes(self) -> dict[str, int]:
        """Of what is kept of requests."""
        scheduler, worker = self.bench.scheduler.side, self.bench.worker.side
        kept: dict[str, Any] = {"live": scheduler._live, "finishing": scheduler._finishing, "ledger": scheduler.ledger,
                                "kept": self.bench.worker.kept, "recompute": worker.recompute}  # fmt: skip
        return {name: len(each) for name, each in kept.items()} | {"sequences": self.bench.index.stats().sequences}


@pytest.mark.parametrize("has_store", [False, True])
def test_nothing_of_a_request_is_kept(has_store: bool, request: pytest.FixtureRequest) -> None:
    make: MakeBench = request.getfixturevalue("make_remote" if has_store else "make_bench")
    soak = Soak(make(host_blocks=64), request.getfixturevalue("memory"))
    soak.run(REQUESTS // 2)
    before = resident_kib()
    soak.run(REQUESTS // 2)
    grown = resident_kib() - before
    assert soak.number == REQUESTS
    assert set(soak.sizes().values()) == {0}, soak.sizes()
    assert grown < GROWTH_KIB_MAX, f"{grown} KiB more after {REQUESTS} requests"
