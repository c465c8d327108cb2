"""Pins by block, as the remote-G2 build binds them, and the steps of them that no lock holds together.

Upstream guards its reuse tree with a mutex, and not its eviction queues and reference counts (surface 4.4); the GIL is
released on both sides (surface 4.3). Our own block manager is locked, so the stand-in keeps the unlocked part in
Python: a reference count that is read and then written, and a free block that is looked at and then taken. A test may
step in between at a named point; where none does, the native calls on either side let other threads run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from trtllm_kvfix import native

from .. import pauses
from ..nanobind import bound
from .cached import CachedBlocks
from .core import BoundCore

Found = tuple[int, int, str]  # block, slot, tier


class UnlockedPins(BoundCore):
    __slots__ = ("_cached", "pin_counts", "pinned_hashes")

    def __init__(self, **options: Any) -> None:
        super().__init__(events_max=CachedBlocks.EVENTS_MAX, **options)
        self._cached = CachedBlocks(self.native)
        self.pin_counts: dict[int, int] = {}  # by block id
        self.pinned_hashes: dict[int, int] = {}  # of those that were asked for by hash

    @bound
    def pin_blocks_by_id(self, block_ids: Sequence[int], /) -> list[tuple[int, str]]:
        places = [self._place_of(block_id) for block_id in block_ids]
        pauses.reach(pauses.PIN_FOUND)
        for block_id in block_ids:
            self._count_pin(block_id)
        return places

    @bound
    def unpin_blocks_by_id(self, block_ids: Sequence[int], /) -> None:
        for block_id in block_ids:
            count = self._read_count(block_id)
            if count <= 0:
                raise RuntimeError(f"block {block_id} is not pinned")
            self.pin_counts[block_id] = count - 1
            if count == 1:
                del self.pin_counts[block_id]
                self.pinned_hashes.pop(block_id, None)
                with suppress(ValueError):
                    self.native.unpin_blocks_by_id([block_id])

    @bound
    def store_blocks_for_reuse(self, request_id: int, llm_request: Any, pin_blocks: bool, /) -> list[int]:
        self._store_computed(llm_request)
        block_ids = self.native.get_cache_block_ids(request_id)[0] if pin_blocks else []
        for block_id in block_ids:
            self._count_pin(block_id)
        return block_ids

    @bound
    def find_and_pin_blocks_by_hash(
        self,
        block_hashes: Sequence[int],
        window_size: int,
        tier: str = "host_pinned",
        stop_on_miss: bool = True,
    ) -> list[dict[str, Any]]:
        """Looks first and counts afterwards: in between the block may get another owner."""
        assert window_size == self.window
        wanted = {"host_pinned": ("host",), "device": ("primary",), "any": ("primary", "host")}[tier]
        found = [self._find(block_hash, wanted) for block_hash in block_hashes]
        if stop_on_miss and None in found:
            found[found.index(None) :] = [None] * (len(found) - found.index(None))
        pauses.reach(pauses.PIN_FOUND)
        return [self._pin_found(block_hash, place) for block_hash, place in zip(block_hashes, found, strict=True)]

    @bound
    def get_slot_idx_by_block_id(self, block_id: int, window_size: int, /) -> int:
        assert window_size == self.window
        return self._place_of(block_id)[0]

    @bound
    def commit_and_get_block_hashes_for_request(self, llm_request: Any, window_size: int, /) -> list[int]:
        assert window_size == self.window
        self._store_computed(llm_request)
        return native.block_hashes(self._request(llm_request), self.native.config)  # upstream's have 64 bits

    @bound
    def get_iteration_stats(self) -> dict[str, int]:
        """Reading resets: who else reads gets the rest (surface 4.1, 7.3)."""
        self.native.refresh_blocks()
        counters = self.native.get_kv_cache_stats().iteration
        return {"iter_reused_blocks": counters.blocks_reused, "iter_alloc_new_blocks": counters.blocks_new}

    @bound
    def get_unique_secondary_pool(self) -> Any:
        return self._pools.secondary

    @bound
    def get_secondary_pool_data(self, layer: int, /) -> Any:
        del layer
        return self._pools.secondary

    def _store_computed(self, llm_request: Any) -> None:
        super()._store_computed(llm_request)
        if llm_request.request_id in self._lengths:
            (block_ids, *_) = self.native.get_cache_block_ids(llm_request.request_id)
            self._cached.stored(native.block_hashes(self._request(llm_request), self.native.config), block_ids)

    @bound
    def remove_sequence(self, request_id: int, llm_request: Any, pin_on_release: bool, /) -> None:
        known = request_id in self._lengths
        block_ids = self.native.get_cache_block_ids(request_id)[0] if known else []
        super().remove_sequence(request_id, llm_request, pin_on_release)
        if known:
            hashes = native.block_hashes(self._request(llm_request, whole=True), self.native.config)
            self._cached.stored(hashes, block_ids)

    # The steps.

    def _find(self, block_hash: int, tiers: Sequence[str]) -> Found | None:
        block_id = self._cached.find(block_hash)
        if block_id is None:
            return None
        try:
            slot, tier = self._place_of(block_id)
        except native.BlockInFlight:
            return None
        return (block_id, slot, tier) if tier in tiers else None

    def _pin_found(self, block_hash: int, found: Found | None) -> dict[str, Any]:
        answer: dict[str, Any] = {"block_hash": block_hash, "pinned": found is not None}
        answer |= dict.fromkeys(("found_tier", "block_id", "slot_idx"))
        if found is not None:
            block_id, slot, tier = found
            self._count_pin(block_id)
            self.pinned_hashes[block_id] = block_hash
            answer |= {"found_tier": tier, "block_id": block_id, "slot_idx": slot}
        return answer

    @contextmanager
    def _taking_blocks(self) -> Iterator[None]:
        """The executor has looked at what is free; a pin that comes now does not hold it back from taking it."""
        known = set(self.pin_counts)
        self.native.get_kv_cache_stats()
        pauses.reach(pauses.FREE_BLOCK_SEEN)
        late = [block_id for block_id in list(self.pin_counts) if block_id not in known]
        for block_id in late:
            with suppress(ValueError):
                self.native.unpin_blocks_by_id([block_id])
        yield
        for block_id in late:
            with suppress(ValueError, native.BlockInFlight):
                self.native.pin_blocks_by_id([block_id])

    def _count_pin(self, block_id: int) -> None:
        count = self._read_count(block_id)
        if count == 0:
            # Upstream raises the count of whatever has the id now; ours has nothing to hold where nothing is.
            with suppress(ValueError, native.BlockInFlight):
                self.native.pin_blocks_by_id([block_id])
        self.pin_counts[block_id] = count + 1

    def _read_count(self, block_id: int) -> int:
        """A read that is followed by a write, with another thread's turn in between."""
        count = self.pin_counts.get(block_id, 0)
        self.native.get_kv_cache_stats()
        pauses.reach(pauses.PIN_COUNT_READ)
        return count

    def _place_of(self, block_id: int) -> tuple[int, str]:
        (place,) = self.native.pin_blocks_by_id([block_id])
        self.native.unpin_blocks_by_id([block_id], tier=place[1])
        return place

    # For the tests.

    def standin_torn_pins(self) -> list[int]:
        """Blocks that are pinned, and hold something else than what was pinned."""
        pinned = list(self.pinned_hashes.items())
        return [block_id for block_id, block_hash in pinned if self._cached.find(block_hash) != block_id]
