"""The core of the V2 manager: caches that write their pages into the host table themselves (surface 2.1, 2.2)."""

from typing import Any

import numpy as np

from trtllm_kvfix import native

from .._standin.variant import since

BACKEND = "python"
BAD_PAGE = -1


class KVCacheManager:
    """Not a BaseKVCacheManager. Books are kept by `trtllm_kvfix.native.BlockManager`; a page is a slot of it."""

    def __init__(self, tokens_per_block: int, pages: int, *, enable_block_reuse: bool) -> None:
        self.tokens_per_block = tokens_per_block
        self.layer_grouping = [[0], [1]]
        self.native = native.BlockManager(
            native.BlockManagerConfig(
                tokens_per_block=tokens_per_block, blocks_primary=pages, block_reuse=enable_block_reuse
            )
        )

    def create_kv_cache(self, cache_id: int, tokens: list[int], salt: int | None = None) -> "_KVCache":
        """It has pages for its whole prompt. No block is matched in part."""
        return _KVCache(self, cache_id, tokens, salt)

    def stale(self, group: int, history: int) -> tuple[int, int]:
        """No window slides."""
        del group, history
        return 0, 0

    def window_of(self, group: int) -> None:
        del group

    def free_blocks(self) -> int:
        tier = self.native.get_kv_cache_stats().windows[0].primary
        return int(tier.free + tier.cached)

    def probe_reuse(self, tokens: list[int], salt: int | None) -> int:
        return int(self.native.analyze_prefix_reuse(native.SequenceRequest(0, [*tokens, 0], salt=salt)).tokens)

    def pages_of(self, cache_id: int, pool: int = 0) -> list[int]:
        del pool  # both groups of layers have the same
        blocks = len(self.native.get_cache_block_ids(cache_id)[0])
        pages = np.full((1, 1, 2, max(1, blocks)), BAD_PAGE, np.int32)
        self.native.copy_batch_block_offsets(pages, [cache_id], 1, 0)
        return [int(page) for page in pages[0, 0, 0, :blocks]]


class _KVCache:
    def __init__(self, manager: KVCacheManager, cache_id: int, tokens: list[int], salt: int | None) -> None:
        self.manager = manager
        self.cache_id = cache_id
        self._prompt_len = len(tokens)
        self._buffers: dict[tuple[int, int], memoryview] = {}  # raw pointers in upstream; by beam and pool
        admission = manager.native.add_sequence(native.SequenceRequest(cache_id, tokens, salt=salt))
        manager.native.complete(manager.native.take_transfers().ticket)
        self.num_committed_tokens = admission.tokens_reused
        self.capacity = len(tokens)
        self.history_length = self.num_committed_tokens
        self.is_active = True

    def _set_base_page_index_buf(self, beam: int, pool: int, buffer: memoryview | None) -> None:
        if buffer is None:
            self._buffers.pop((beam, pool), None)
            return
        self._buffers[beam, pool] = buffer.cast("B").cast("i")
        self._publish()

    if since("B2"):
        set_base_page_index_buf = _set_base_page_index_buf
    else:
        set_page_index_buf = _set_base_page_index_buf  # renamed by #11334

    def resize(self, capacity: int, history_length: int | None = None) -> bool:
        """Pages are written into the table at once, whatever the device still has to read there."""
        self.history_length = self.history_length if history_length is None else history_length
        if capacity > self.capacity:
            self.manager.native.add_token(self.cache_id, capacity - self.capacity)
        elif capacity < self.capacity:
            self.manager.native.rewind_kv_cache(self.cache_id, self.capacity - capacity)
        self.capacity = capacity
        self._publish()
        return True

    def get_scratch_desc(self, pool: int) -> tuple[int, int, list[int]]:
        """First and last scratch block, and the slots that serve them: numbers that distinguish caches."""
        return (
            self.cache_id + pool,
            self.cache_id + pool + 2,
            [self.cache_id * 10 + pool, self.cache_id * 10 + pool + 1],
        )

    def commit(self, tokens_computed: int) -> None:
        self.manager.native.store_context_blocks(self.cache_id, min(tokens_computed, self._prompt_len))

    def suspend(self) -> None:
        """Clears the pointers; `resume` needs them set again (surface 2.2)."""
        self.is_active = False
        self._buffers.clear()

    def resume(self, stream: int) -> bool:
        del stream
        self.is_active = True
        return True

    def close(self, tokens: list[int] | None = None, computed: int = 0) -> None:
        """Whether upstream writes BAD_PAGE here is not established (surface 12); the stand-in does what would hurt."""
        if tokens is None:
            self.manager.native.remove_sequence(self.cache_id, store=False)
        else:
            self.manager.native.remove_sequence(
                self.cache_id, tokens=tokens[: self.capacity], computed=min(computed, self.capacity)
            )
        self.is_active = False
        for row in self._buffers.values():
            for index in range(len(row)):
                row[index] = BAD_PAGE
        self._buffers.clear()

    def _publish(self) -> None:
        pages: list[Any] = self.manager.pages_of(self.cache_id)
        for row in self._buffers.values():
            for index in range(len(row)):
                row[index] = pages[index] if index < len(pages) else BAD_PAGE
