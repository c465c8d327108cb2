"""The counts themselves: plain numbers behind a lock each, so that the hot path pays for no library.

    from trtllm_kvfix.metrics import counters
    counters.ring_waits.add()

The exporter reads them when it is asked; `docs/support.md` lists them.
"""

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

    @property
    def value(self) -> float:
        return self._value


staged_bytes = Counter("staged_bytes", "Bytes of block offsets that were staged instead of copied from a live table")
staged_shipments = Counter("staged_shipments", "Times that block offsets were shipped to the device")
ring_waits = Counter("ring_waits", "Shipments that waited for a slot because every slot was pending")
ring_wait_seconds = Counter("ring_wait_seconds", "Seconds that shipments waited for a slot")
fence_waits = Counter("fence_waits", "Times that scheduling waited for the input copies of the last step")
fence_wait_seconds = Counter("fence_wait_seconds", "Seconds that scheduling waited for input copies")
reused_tokens = Counter("reused_tokens", "Prompt tokens that admission found in the cache")
reuse_lost_tokens = Counter(
    "reuse_lost_tokens", "Prompt tokens that were expected to be in the cache and were evicted before they were claimed"
)
budget_trims = Counter("budget_trims", "Context chunks made smaller because the batch exceeded max_num_tokens")
budget_trimmed_tokens = Counter("budget_trimmed_tokens", "Tokens taken off such chunks")
budget_deferrals = Counter("budget_deferrals", "Requests put off to the next iteration to stay within max_num_tokens")
budget_overruns = Counter(
    "budget_overruns", "Batches that stayed above max_num_tokens because nothing in them could be put off"
)
pins = Counter("pins", "Calls that pinned blocks and were serialised with the executor")
unpins = Counter("unpins", "Calls that unpinned blocks and were serialised with the executor")
lock_waits = Counter("lock_waits", "Serialised calls that waited for another thread")
lock_wait_seconds = Counter("lock_wait_seconds", "Seconds that serialised calls waited for another thread")

ALL: tuple[Counter, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Counter))

# Counts that are kept elsewhere, such as by a native stager, are fetched when they are asked for.
_refreshers: list[Callable[[], None]] = []


def before_reading(refresh: Callable[[], None]) -> None:
    """Have `refresh` add what it knows whenever the counts are about to be read."""
    _refreshers.append(refresh)


def read() -> dict[str, float]:
    for refresh in _refreshers:
        refresh()
    return {counter.name: counter.value for counter in ALL}
