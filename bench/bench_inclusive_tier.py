"""What a host tier can bring that stores blocks while they are computed, as a connector does, beside one that takes
them when they leave the GPU, as the built-in one does.

host_hit_percent         prompt tokens that the host tier brought
written_blocks           blocks written to it

All are simulations over the same requests, one after the other, in blocks of 512 tokens, with a GPU that drops what was
asked for the longest ago. `exclusive LRU` stands for the built-in tier. `LRU at 9/10` takes a block once nine tenths of
the GPU's blocks were asked for later. `share at once` is the share of newcomers of the native manager in a tier that
takes a block when it is asked for. `told ...` are tiers that store at once and know how blocks of each kind come back
on this very trace, though not which.
"""

from collections.abc import Callable, Iterator
from functools import partial

from bench_exclusive_tier import SIZES_GIB, options, workloads
from bench_host_admission import BLOCK, BLOCK_BYTES, GIB, once
from host_policies import (
    Asked,
    ExclusiveLru,
    ExclusiveShare,
    KindOf,
    Told,
    asked_for,
    by_times_and_gaps,
    by_warmth,
    evicted_to,
    touched,
)
from measure import Row, report

from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.trace import TOKENS_PER_HASH_ID

SLOTS_PER_GIB = GIB // (BLOCK_BYTES * (TOKENS_PER_HASH_ID // BLOCK))
GPU = 60 * SLOTS_PER_GIB


def offered(make: Callable[[int], ExclusiveLru], at: float, slots: int, requests: list[Asked]) -> tuple[int, int]:
    _, found, written = evicted_to(make(slots), requests, GPU, at)
    return found, written


def told(kind_of: KindOf, slots: int, requests: list[Asked]) -> tuple[int, int]:
    tier = Told(slots, touched(requests, GPU, slots, kind_of))
    return tier.found(), tier.stored


TIERS: dict[str, Callable[[int, list[Asked]], tuple[int, int]]] = {
    "exclusive LRU": partial(offered, ExclusiveLru, 1),
    "LRU at 9/10": partial(offered, ExclusiveLru, 0.9),
    "share at once": partial(offered, ExclusiveShare, 0),
    "told, kinds of the connector": partial(told, by_warmth),
    "told, by times and gaps": partial(told, by_times_and_gaps),
}


def measure(workload: Workload, sizes: list[int]) -> Iterator[Row]:
    requests = asked_for(workload, TOKENS_PER_HASH_ID, [0] * len(workload.requests))
    prompts = sum(request.input_length for request in workload.requests)
    for gib in sizes:
        for name, simulate in TIERS.items():
            found, written = simulate(gib * SLOTS_PER_GIB, requests)
            where = f"{workload.name}, {gib} GiB"
            percent = 100 * found * TOKENS_PER_HASH_ID / prompts
            yield Row(where, TOKENS_PER_HASH_ID, name, "host_hit_percent", once(percent))
            yield Row(where, TOKENS_PER_HASH_ID, name, "written_blocks", once(written))


def main() -> None:
    arguments = options(__doc__).parse_args()
    sizes = list(SIZES_GIB[: 1 if arguments.quick else None])
    for workload in workloads(arguments):
        report("host_admission.csv", measure(workload, sizes), arguments.results)


if __name__ == "__main__":
    main()
