"""V1's statistics are looked at where upstream asks for them. Impossible counts show a host tier that has lost count.

Upstream's own host tier does so up to 1.3.0rc13, in C++, which nothing here reaches: sooner or later it finds no free
block, or the wrong one. docs/hazards/unfixed.md says what to do.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.log import described, log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation

TRIGGER = RESOURCE_MANAGER
STATISTICS = "KVCacheManager.get_kv_cache_stats"


def replacements(active: "Activation") -> list[Replacement]:
    del active
    if not Upstream().has(TRIGGER, STATISTICS):
        return []
    return [Replacement(Seam(TRIGGER, STATISTICS), looking_at_counts)]


def looking_at_counts(original: Callable[..., Any]) -> Callable[..., Any]:
    said: set[str] = set()

    def get_kv_cache_stats(self: Any, *args: Any, **kwargs: Any) -> Any:
        stats = original(self, *args, **kwargs)
        try:
            wrong = impossible(stats.free_num_blocks, stats.used_num_blocks, stats.max_num_blocks)
        except Exception as error:
            wrong = ""
            if "unreadable" not in said:
                said.add("unreadable")
                log.warning("upstream's statistics of its blocks cannot be read: %s", described(error))
        if wrong:
            counters.impossible_block_counts.add()
            if "impossible" not in said:
                said.add("impossible")
                log.error(
                    "upstream's KV cache has lost count of its blocks: %s. Its own host tier does so up to 1.3.0rc13: "
                    "set kv_cache_config.host_cache_size to 0, or upgrade. docs/hazards/unfixed.md has more. This is "
                    "logged once",
                    wrong,
                )  # fmt: skip
        return stats

    return get_kv_cache_stats


def impossible(free: int, used: int, all_blocks: int) -> str:
    """What is wrong with these counts; nothing if they can be."""
    if free > all_blocks:
        return f"{free} of {all_blocks} blocks are free"
    if free < 0 or used < 0:
        return f"{free} blocks are free, and {used} are used"
    return ""
