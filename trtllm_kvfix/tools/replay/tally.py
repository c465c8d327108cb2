"""Turn the counts of a replay into an outcome."""

from trtllm_kvfix.native import CacheCounters, ReplayReuse, ReplayTally
from trtllm_kvfix.tools.replay.host_tier import Counted
from trtllm_kvfix.tools.replay.outcome import Budget, Moved, Reuse


def reuse_of(counted: ReplayReuse) -> Reuse:
    primary = counted.reused - counted.host
    return Reuse(primary=primary, host=counted.host, computed=counted.computed, remote=counted.remote)


def budget_of(tally: ReplayTally) -> Budget:
    return Budget(**{name: getattr(tally, name) for name in Budget.model_fields})


def moved_of(counters: CacheCounters, beside: Counted, bytes_per_block: int | None) -> Moved:
    """beside: what a host tier beside the manager moved."""

    def size(blocks: int) -> int | None:
        return None if bytes_per_block is None else blocks * bytes_per_block

    to_host = counters.blocks_offloaded + beside.stored
    to_primary = counters.blocks_onboarded + beside.loaded
    return Moved(
        blocks_to_host=to_host,
        blocks_to_primary=to_primary,
        blocks_within_primary=counters.blocks_copied,
        bytes_to_host=size(to_host),
        bytes_to_primary=size(to_primary),
        bytes_within_primary=size(counters.blocks_copied),
    )
