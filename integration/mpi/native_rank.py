"""One rank of the native manager under mpirun: `mpirun -n N python -m integration.mpi.native_rank TASK`.

Each rank has a simulated device of its own, which takes its own time for copies. Rank 0 prints what all found.
"""

import json
import random
import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from integration.mpi.native_rank_facts import ALONE_AT, COMPARED_EVERY, ITERATIONS
from tests.bound import load
from tests.managers.making import Bench
from trtllm_kvfix import native
from trtllm_kvfix.managers.capacity import scheduler_for
from trtllm_kvfix.managers.prompts import NOTED_RETENTION, NotedRetention
from trtllm_kvfix.managers.reports import EventManager
from trtllm_kvfix.ranks import RanksDiffer
from trtllm_kvfix.staging import on_stream


def arrivals() -> list[dict[str, Any]]:
    """The same on all ranks: prompts that share prefixes, and some that are to be kept for a while."""
    chance = random.Random(11)
    stems = [list(range(1000 * stem, 1000 * stem + 24)) for stem in range(4)]
    found = []
    for number in range(1, 81):
        own = [10_000 * number + each for each in range(chance.randrange(1, 6))]
        kept = NotedRetention(((0, None, chance.choice([20, 60, 90]), chance.choice([None, 3])),), 35, None)
        found.append(
            {
                "request_id": number,
                "tokens": chance.choice(stems)[: chance.randrange(24)] + own,
                "new": chance.randrange(1, 6),
                "kept": kept if chance.random() < 0.5 else None,
            }
        )
    return found


class Loop:
    """Upstream's plain loop over our manager."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.impl = bench, bench.impl
        capacity = scheduler_for(6, self.impl)
        assert capacity is not None
        self.capacity = capacity
        self.waiting = arrivals()
        self.active: list[Any] = []
        self.pinned: list[Any] = []

    def iterate(self) -> None:
        while self.waiting and len(self.active) < 8:
            self.active.append(self._request(**self.waiting.pop(0)))
        fitting, _, _ = self.capacity.schedule_request(self.active)
        contexts = [each for each in fitting if each.is_context_init_state]
        self.bench.prepare(contexts, [each for each in fitting if not each.is_context_init_state])
        for each in contexts:
            self.bench.computed(each, token=each.request_id)
            self.impl.store_context_blocks(each)
        for each in fitting:
            if each not in contexts:
                each.add_new_token(each.request_id, 0)
            if each.get_num_tokens(0) >= each.prompt_len + each.max_new_tokens:
                self._end(each)
        self.impl.flush_iteration_events()

    def _request(self, request_id: int, tokens: list[int], new: int, kept: Any) -> Any:
        made = self.bench.request(request_id, tokens, max_new_tokens=new)
        setattr(made, NOTED_RETENTION, kept)
        return made

    def _end(self, request: Any) -> None:
        if request.request_id % 5 == 0:
            self.pinned.append(self.impl.store_blocks_for_reuse(request.request_id, request, True))
        self.impl.remove_sequence(request.request_id, request, False)
        self.active.remove(request)
        while len(self.pinned) > 1:
            self.impl.unpin_blocks_by_id(self.pinned.pop(0))


def bench_of(comm: Any, device: native.Device, stream: int) -> Bench:
    events = EventManager(64) if comm.rank == 0 else None  # as upstream's constructor makes it
    bench = Bench(load().D, device, stream, blocks=24, host=16, event_manager=events)
    bench.impl._comparison._every = COMPARED_EVERY
    return bench


def forget(bench: Bench) -> None:
    """The other ranks still find what one forgets."""
    bench.impl.core.reset_reuse_state()


def poll(bench: Bench) -> None:
    """End a ticket where its copies happen to be done, which here they never are: the others wait for them."""
    copies: Any = bench.impl._copies
    copies.end = lambda: None


TASKS = {"equal": lambda _: None, "forget": forget, "poll": poll}


def run(comm: Any, do_alone: Callable[[Bench], None]) -> dict[str, Any]:
    device = native.open_device("cpu", seed=comm.rank + 1)
    stream = device.create_stream()
    with on_stream(device, stream):
        bench = bench_of(comm, device, stream)
        loop, digests = Loop(bench), []
        for iteration in range(1, ITERATIONS + 1):
            if iteration == ALONE_AT and comm.rank == comm.size - 1:
                do_alone(bench)
            try:
                loop.iterate()
            except RanksDiffer as error:
                return {"stopped": iteration, "said": str(error)}
            digests.append(bench.impl.core.digest())
        total = bench.impl.core.get_kv_cache_stats().total
        return {
            "digests": digests,
            "left": len(loop.waiting),
            "moved": min(total.blocks_offloaded, total.blocks_onboarded),
            "events": len(bench.impl.get_latest_events(0)),
            "seed": bench.impl.core.config.seed,
        }


def main(task: str) -> None:
    comm = MPI.COMM_WORLD
    found = comm.gather(run(comm, TASKS[task]))
    if comm.rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
