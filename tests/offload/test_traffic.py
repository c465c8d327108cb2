"""Random traffic: turns, shared prompts, cancellations, preemptions, failing copies; both tiers too small for it."""

import random

import pytest

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Mark, TransferLane
from trtllm_kvfix.offload.transfers import Addresses

from .conftest import Bench, MakeBench
from .faults import Enqueue, heal, replace_enqueue
from .upstream_double import Request, State

REQUESTS = 400


class Traffic:
    """Conversations that come back. Every prompt begins with tokens of its conversation alone, or with shared ones."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.random = bench, random.Random(seed)
        self.number = 0
        self.histories = [[1000 + one, *range(1, 9)] if one % 2 else [7, 7, 7, 7, 1000 + one] for one in range(12)]
        self.open: list[tuple[Request, list[int]]] = []

    def turn(self) -> None:
        history = self.random.choice(self.histories)
        if any(one is history for _, one in self.open):
            return
        self.number += 1
        history += [self.number, *range(self.random.randrange(6))]
        del history[60:]  # a conversation that has grown too long says nothing new
        request = Request(self.number, list(history), max_new_tokens=self.random.randrange(1, 8))
        self.open.append((request, history))
        self.bench.executor.submit(request)

    def collect(self) -> None:
        for request, history in [one for one in self.open if one[0].state is State.GONE]:
            self.open.remove((request, history))
            history[:] = request.tokens

    def between(self, step: int) -> None:
        executor = self.bench.executor
        while self.number < REQUESTS and len(executor.waiting) < 3 and len(self.open) < 10:
            self.turn()
        self.collect()
        if executor.scheduled:  # steps that only wait come in any number
            self.disturb()
        if step % 16 == 0:
            self.bench.index.check_invariants()
            executor.check_reads()

    def disturb(self) -> None:
        executor, chance = self.bench.executor, self.random.random()
        running = [one for one in executor.active if one.state in (State.CONTEXT, State.GENERATION)]
        if chance < 0.05 and self.open:
            executor.cancel(self.random.choice(self.open)[0])
        elif chance < 0.08 and running:
            executor.preempt(self.random.choice(running))
        elif chance < 0.10:
            self.fail_next_transfer()

    def fail_next_transfer(self) -> None:
        self.plant(self.random.choice(("store", "load")))

    def plant(self, direction: str) -> None:
        """The next copy of a direction goes where no memory is, and fails when its turn comes."""

        def make(_lane: TransferLane, enqueue: Enqueue) -> Enqueue:
            def failing(job: int, dst: Addresses, src: Addresses, nbytes: Addresses, **options: Mark) -> str:
                heal(self.bench)
                return enqueue(job, dst * 0 + 1, src, nbytes, **options)

            return failing

        heal(self.bench)
        replace_enqueue(self.bench, direction, make)


@pytest.mark.parametrize("seed", range(3))
def test_no_block_ever_holds_a_foreign_or_half_written_value(seed: int, make_bench: MakeBench) -> None:
    bench = make_bench(
        host_blocks=120, seed=seed, verify="sample", executor={"blocks": 40, "chunk_tokens": 16, "batch": 4}
    )
    traffic, before = Traffic(bench, seed), counters.offload_errors.value
    executor = bench.executor

    traffic.turn()
    executor.run(traffic.between)
    bench.settle()
    assert traffic.number == REQUESTS
    assert executor.corrupt == []
    assert executor.reads_checked > REQUESTS // 2
    assert executor.loaded_tokens > REQUESTS, "the host tier was used"
    assert counters.offload_errors.value > before, "and transfers failed"
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0
    assert len(bench.scheduler.side._sources) == 0
