"""Which block has a hash. The core's events say what is cached, and whoever stores says which blocks those are."""

from collections.abc import Sequence

from trtllm_kvfix import native


class CachedBlocks:
    EVENTS_MAX = 1 << 16  # far more than come between two looks

    def __init__(self, core: native.BlockManager) -> None:
        self._core = core
        self._ids: dict[int, int | None] = {}  # by hash; None until it is known who stored it

    def stored(self, block_hashes: Sequence[int], block_ids: Sequence[int]) -> None:
        """These are the blocks of a request that has just been stored. What was cached before has its block."""
        self._follow()
        for block_hash, block_id in zip(block_hashes, block_ids, strict=False):
            if block_hash in self._ids and self._ids[block_hash] is None:
                self._ids[block_hash] = block_id

    def find(self, block_hash: int) -> int | None:
        self._follow()
        return self._ids.get(block_hash)

    def _follow(self) -> None:
        for event in self._core.get_latest_events():
            if event.kind == "stored":
                self._ids[event.block_hash] = None
            elif event.kind == "removed":
                del self._ids[event.block_hash]
