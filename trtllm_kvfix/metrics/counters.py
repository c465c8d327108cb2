"""The counts themselves: plain numbers behind a lock each, so that the hot path pays for no library.

    from trtllm_kvfix.metrics import counters
    counters.ring_waits.add()

The exporter reads them when it is asked; `docs/support.md` lists them.
"""

import os
import threading
from collections.abc import Callable
from typing import Literal


class Counter:
    """A number that only grows, or with `kind="gauge"` one that may shrink as well. Any thread may add."""

    __slots__ = ("_lock", "_value", "help", "kind", "name")

    def __init__(self, name: str, help_text: str, kind: Literal["counter", "gauge"] = "counter") -> None:
        self.name = name
        self.help = help_text
        self.kind = kind
        self._value = 0.0
        self._lock = threading.Lock()

    def add(self, amount: float = 1) -> None:
        if amount < 0 and self.kind == "counter":
            raise ValueError(f"{self.name} counts up only, got {amount}; a gauge may shrink")
        with self._lock:
            self._value += amount

    def put(self, value: float) -> None:
        """Set a number that is kept elsewhere to its present value."""
        with self._lock:
            self._value = value

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    @property
    def value(self) -> float:
        return self._value


class CounterByFix(Counter):
    """One number for each fix; its value is their sum."""

    __slots__ = ("_by_fix",)

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(name, help_text)
        self._by_fix: dict[str, float] = {}

    def add(self, amount: float = 1, fix_id: str = "") -> None:
        super().add(amount)
        with self._lock:
            self._by_fix[fix_id] = self._by_fix.get(fix_id, 0.0) + amount

    def by_fix(self) -> dict[str, float]:
        with self._lock:
            return dict(self._by_fix)


enabled = Counter("enabled", "1: this rank runs with the fixes, 0: they are switched off", "gauge")
fix_faults = CounterByFix("fix_faults", "Failures in a fix's own code, after each of which it took its safe fallback")
observed = CounterByFix("observed", "Times that a fix on `observe` would have acted")
staged_bytes = Counter("staged_bytes", "Bytes of block offsets that were staged instead of copied from a live table")
staged_shipments = Counter("staged_shipments", "Times that block offsets were shipped to the device")
ring_waits = Counter("ring_waits", "Shipments that waited for a slot because every slot was pending")
ring_wait_seconds = Counter("ring_wait_seconds", "Seconds that shipments waited for a slot")
late_copies = Counter("late_copies", "Early copies that others kept waiting for the GPU's copy engine")
table_read_backs = CounterByFix("table_read_backs", "Shipments of block offsets that were read back from the device")
table_mismatches = CounterByFix(
    "table_mismatches", "Of the shipments that were read back, those that had arrived wrong"
)
fence_waits = Counter("fence_waits", "Times that scheduling waited for the input copies of the last step")
fence_wait_seconds = Counter("fence_wait_seconds", "Seconds that scheduling waited for input copies")
replay_waits = Counter("replay_waits", "Writes to LoRA tables that waited until a CUDA graph had read them")
replay_wait_seconds = Counter("replay_wait_seconds", "Seconds that writes to LoRA tables waited for CUDA graphs")
reused_tokens = Counter("reused_tokens", "Prompt tokens that admission found in the cache")
reuse_lost_tokens = Counter(
    "reuse_lost_tokens", "Prompt tokens that were expected to be in the cache and were evicted before they were claimed"
)
budget_trims = Counter("budget_trims", "Context chunks made smaller because the batch exceeded max_num_tokens")
budget_trimmed_tokens = Counter(
    "budget_trimmed_tokens", "Tokens taken off chunks because the batch exceeded max_num_tokens"
)
budget_deferrals = Counter("budget_deferrals", "Requests put off to the next iteration to stay within max_num_tokens")
budget_overruns = Counter(
    "budget_overruns", "Batches that stayed above max_num_tokens because nothing in them could be put off"
)
impossible_block_counts = Counter(
    "impossible_block_counts", "Times that TensorRT-LLM's V1 counted more free blocks than there are, or fewer than 0"
)
stores_held_back = Counter(
    "stores_held_back", "Times that a prompt was not offered for reuse because a part of it had not been computed"
)
canary_observes = Counter("canary_observes", "1: a canary looks at this rank's blocks, 0: none does", "gauge")
canary_compared_blocks = Counter("canary_compared_blocks", "Cached blocks that the canary compared with what they were")
canary_missed_looks = Counter("canary_missed_looks", "Looks of the canary that were due and came too late or never")
canary_changed_blocks = Counter("canary_changed_blocks", "Complete blocks that the canary saw changed")
canary_unfilled_blocks = Counter("canary_unfilled_blocks", "Reused blocks that the canary saw nobody fill to the end")
pins = Counter("pins", "Calls that pinned blocks and were serialised with the executor")
unpins = Counter("unpins", "Calls that unpinned blocks and were serialised with the executor")
lock_waits = Counter("lock_waits", "Serialised calls that waited for another thread")
lock_wait_seconds = Counter("lock_wait_seconds", "Seconds that serialised calls waited for another thread")
native_declined_blocks = Counter(
    "native_declined_blocks", "Evicted blocks that the native manager's full host tier did not take"
)
native_failed_copies = Counter("native_failed_copies", "Batches of the native manager's copies of blocks that failed")

offload_prompt_tokens = Counter("offload_prompt_tokens", "Prompt tokens that the host tier was asked about")
offload_device_hit_tokens = Counter("offload_device_hit_tokens", "Prompt tokens that were on the device already")
offload_host_hit_tokens = Counter(
    "offload_host_hit_tokens", "Prompt tokens that the host tier had, beyond those on the device"
)
offload_host_hits = Counter("offload_host_hits", "Prompts of which the host tier had a part")
offload_requests_skipped = Counter(
    "offload_requests_skipped", "Requests left alone because their blocks depend on more than tokens"
)
offload_stored_blocks = Counter("offload_stored_blocks", "Blocks saved in the host tier")
offload_loaded_blocks = Counter("offload_loaded_blocks", "Blocks brought back from the host tier")
offload_stored_bytes = Counter("offload_stored_bytes", "Bytes saved in the host tier of this rank")
offload_loaded_bytes = Counter("offload_loaded_bytes", "Bytes brought back from the host tier of this rank")
offload_store_seconds = Counter(
    "offload_store_seconds", "Seconds from the submission of stores until their end was seen"
)
offload_load_seconds = Counter("offload_load_seconds", "Seconds from the submission of loads until their end was seen")
offload_dropped_blocks = Counter(
    "offload_dropped_blocks", "Blocks not saved: every host block was busy, or no more transfers could wait"
)
offload_declined_blocks = Counter(
    "offload_declined_blocks", "Blocks not saved: no request had asked for them before, and the host tier is full"
)
offload_evicted_blocks = Counter("offload_evicted_blocks", "Blocks that left the host tier to make room", "gauge")
offload_errors = Counter("offload_errors", "Transfers that failed on any rank, counted on rank 0")
offload_rank_errors = Counter("offload_rank_errors", "Transfers that failed on this rank")
offload_given_up = Counter(
    "offload_given_up", "Directions (stores, loads) that are given up after too many failures in a row", "gauge"
)
offload_bad_blocks = Counter(
    "offload_bad_blocks", "Loaded blocks that were not what had been stored; they were not used"
)
offload_recomputed_requests = Counter("offload_recomputed_requests", "Requests that computed what a load did not bring")
offload_held_back_requests = Counter(
    "offload_held_back_requests", "Requests that started later, because requests that load need the free blocks"
)
offload_early_reuse_waits = Counter(
    "offload_early_reuse_waits", "Waits for transfers whose blocks upstream had given to another request"
)
offload_pool_blocks = Counter("offload_pool_blocks", "Blocks of the host tier", "gauge")
offload_pool_free_blocks = Counter("offload_pool_free_blocks", "Host blocks that hold nothing", "gauge")
offload_pool_busy_blocks = Counter("offload_pool_busy_blocks", "Host blocks that a transfer uses", "gauge")
offload_requested_bytes = Counter(
    "offload_requested_bytes", "Bytes of the host tier of this rank that were asked for", "gauge"
)
offload_pool_bytes = Counter("offload_pool_bytes", "Bytes of the host tier of this rank", "gauge")
offload_pinned_bytes = Counter(
    "offload_pinned_bytes", "Bytes of the host tier of this rank that are registered with the device", "gauge"
)
offload_stores_by_kernel = Counter("offload_stores_by_kernel", "1: stores go by the copy kernel, 0: by DMA", "gauge")
offload_loads_by_kernel = Counter("offload_loads_by_kernel", "1: loads go by the copy kernel, 0: by DMA", "gauge")
offload_queued = Counter("offload_queued", "Transfers that wait for the copy threads", "gauge")
offload_in_flight = Counter("offload_in_flight", "Transfers that the device has", "gauge")
offload_remote_lookups = Counter("offload_remote_lookups", "Prompts that the remote tier was asked about")
offload_remote_unanswered = Counter(
    "offload_remote_unanswered", "Prompts about which the remote tier did not answer in time"
)
offload_remote_not_worth = Counter(
    "offload_remote_not_worth", "Prefixes that the remote tier had, and that were faster to compute than to load"
)
offload_remote_hit_tokens = Counter(
    "offload_remote_hit_tokens", "Prompt tokens of the host tier's hits that came from the remote tier just then"
)
offload_remote_fetched_blocks = Counter("offload_remote_fetched_blocks", "Blocks brought from the remote tier")
offload_remote_fetched_bytes = Counter("offload_remote_fetched_bytes", "Bytes brought from the remote tier, this rank")
offload_remote_fetch_seconds = Counter("offload_remote_fetch_seconds", "Seconds that fetches from the remote tier took")
offload_remote_put_blocks = Counter("offload_remote_put_blocks", "Blocks put into the remote tier, or there already")
offload_remote_put_bytes = Counter("offload_remote_put_bytes", "Bytes put into the remote tier, this rank")
offload_remote_put_seconds = Counter("offload_remote_put_seconds", "Seconds that puts into the remote tier took")
offload_remote_staged_blocks = Counter(
    "offload_remote_staged_blocks", "Blocks on their way to the store alone: the host tier did not take them"
)
offload_remote_dropped_blocks = Counter(
    "offload_remote_dropped_blocks", "Blocks not put: no store, no room in it, or too many waited"
)
offload_remote_late = Counter("offload_remote_late", "Requests that computed because a fetch took too long")
offload_remote_bad_blocks = Counter(
    "offload_remote_bad_blocks",
    "Blocks from the remote tier that came back changed or were another's; they were not used",
)
offload_remote_errors = Counter("offload_remote_errors", "Fetches and puts that failed on any rank, counted on rank 0")
offload_remote_up = Counter("offload_remote_up", "1: this rank's client of the store is connected", "gauge")
offload_remote_bytes_per_s = Counter("offload_remote_bytes_per_s", "Speed of fetches, one rank's bytes", "gauge")
offload_prefill_tokens_per_s = Counter("offload_prefill_tokens_per_s", "Speed of computing prompts", "gauge")

ALL: tuple[Counter, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Counter))

# Counts that are kept elsewhere, such as by a native stager, are fetched when they are asked for.
_refreshers: list[Callable[[], None]] = []


def _renew_locks() -> None:
    """In a child of fork(): a thread of the parent may have one."""
    for counter in ALL:
        counter.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


def before_reading(refresh: Callable[[], None]) -> None:
    """Have `refresh` add what it knows whenever the counts are about to be read."""
    _refreshers.append(refresh)


def read() -> dict[str, float]:
    for refresh in _refreshers:
        refresh()
    return {counter.name: counter.value for counter in ALL}
