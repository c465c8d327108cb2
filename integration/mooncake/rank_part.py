"""A rank of the model does its part in a process of its own."""

from integration.mooncake.nodes import until
from tests.offload.rank_scenarios import Here, bench_of
from tests.offload.upstream_double import Request
from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.offload.remote.keys import array_of, keys_behind, start_of
from trtllm_kvfix.offload.scheduler import OffloadScheduler

PROMPT = list(range(300, 348))
Found = tuple[int, list[int], list[int], int, list[bytes]]


def serves(here: Here) -> Found:
    """Serves once, with a new host tier: loaded tokens, answer, corrupt requests, reads, and the keys of its blocks."""
    with bench_of(here) as bench:
        until(lambda: bench.worker.side.carrier.porter.is_up, "the store is not there")
        here.ranks.gather(None)
        request = Request(1, list(PROMPT), max_new_tokens=2)
        bench.executor.submit(request)
        bench.executor.run()
        keys: list[bytes] = []
        if bench.scheduler is not None:
            keys = keys_behind(start_of(bench.scheduler.side._link.store.root, Identity()), 0, array_of(PROMPT), 4, ())
        while here.ranks.gather(bench.scheduler is not None and is_busy(bench.scheduler.side))[0]:
            bench.executor.step()
        executor = bench.executor
        return executor.loaded_tokens, request.tokens[48:], list(executor.corrupt), executor.reads_checked, keys


def is_busy(side: OffloadScheduler) -> bool:
    return len(side.ledger) > 0
