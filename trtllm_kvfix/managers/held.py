"""The part of `.impl` that other threads use beside the loop: blocks that transfers hold, by slots, and events."""

import threading
from collections.abc import Sequence
from typing import Any

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.events import KVCacheEvent
from trtllm_kvfix.managers.layout import Layout
from trtllm_kvfix.managers.locks import locked
from trtllm_kvfix.native import BlockManager


class Held:
    core: BlockManager
    layout: Layout
    _books: Books
    _lock: threading.RLock

    # ---- blocks that are held beyond their request, by slots ----

    @locked
    def store_blocks_for_reuse(self, request_id: int, llm_request: Any, pin_blocks: bool) -> Any:
        self._books.store(request_id, llm_request)
        slots = self._pinned(request_id) if pin_blocks else []
        return slots if self.layout.pins_by_list else self._books.pins.chain(slots)

    @locked
    def pin_blocks(self, request_id: int) -> None:
        self._refuse_windows()
        self._books.pin(request_id)

    @locked
    def unpin_blocks_by_id(self, block_ids: int | Sequence[int]) -> None:
        if isinstance(block_ids, int):
            self._books.pins.unpin_chain(block_ids)
        else:
            self._books.pins.unpin(block_ids)

    def _pinned(self, request_id: int) -> list[int]:
        self._refuse_windows()
        return self._books.pin(request_id) if self._books.knows(request_id) else []

    def _refuse_windows(self) -> None:
        if self.layout.slides:
            raise NotServed("blocks of several or sliding windows are not pinned: their slots do not name them")

    # ---- events ----

    def flush_iteration_events(self) -> None:
        """Make the events since the last call readable. Ranks that show no events drop them."""
        events = self.core.get_latest_events()
        if self.layout.events is not None:
            self.layout.events.add(events, self.layout.windows[0].size)

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        events = self.layout.events
        return [] if events is None else events.get_latest_events(timeout_ms)
