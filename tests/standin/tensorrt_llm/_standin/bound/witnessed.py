"""The bound manager of the extension, and the copies that its books ask for.

Books and declarations are the extension's; Python runs the copies behind each call that may cause one. What it adds
passes its arguments on as they come, so that None and keywords are refused as upstream's binding refuses them.
"""

from typing import Any

from ..extension import era
from ..variant import since
from .pools import Pools, parts_of

_Bound: Any = era.KVCacheManager


class WitnessedManager(_Bound):  # type: ignore[misc]  # by variant
    __slots__ = ("_pools", "_window")  # and no other attribute, as upstream's class takes none

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.witness_record(False)
        # Tables and contents are those of the longest window.
        self._window, (primary, secondary) = max(keywords["blocks_per_window"].items())
        block_shape = (
            len(keywords["num_kv_heads_per_layer"]),
            parts_of(keywords.get("cache_type")),
            keywords["tokens_per_block"],
        )
        self._pools = Pools(block_shape=block_shape, primary=primary, secondary=secondary, stream=keywords["stream"])

    def add_sequence(self, *args: Any, **keywords: Any) -> None:
        super().add_sequence(*args, **keywords)
        self._run_transfers()

    def add_token(self, *args: Any, **keywords: Any) -> None:
        super().add_token(*args, **keywords)
        self._run_transfers()

    if since("B"):

        def sync_transfer_manager_with_buffer_manager(self, *args: Any) -> None:
            super().sync_transfer_manager_with_buffer_manager(*args)
            self._pools.transfers_follow_buffers()

        def refresh_blocks(self, *args: Any) -> None:
            super().refresh_blocks(*args)
            self._pools.buffers_follow_transfers()

    def get_unique_primary_pool(self, *args: Any) -> Any:
        if self.num_pools > 1:
            super().get_unique_primary_pool(*args)  # raises
        return self._pools.primary

    def get_block_pool_pointers(self, *args: Any) -> Any:
        super().get_block_pool_pointers(*args)
        return self._pools.pointers()

    def release_pools(self, *args: Any) -> None:
        super().release_pools(*args)
        self._pools.close()

    @property
    def standin_window(self) -> int:
        window: int = self._window
        return window

    def standin_estimate(self, request: Any) -> int:
        """B2's scheduler asks this past Python: it counts every full block that is cached, whoever holds it (surface
        5)."""
        if self.is_variable_window or not request.is_first_context_chunk or self._has(request):
            return 0
        blocks = _Bound.count_reusable_blocks(self, request.get_unique_tokens(0), request, False)
        return int(min(blocks, request.prompt_len // self.tokens_per_block) * self.tokens_per_block)

    def _has(self, request: Any) -> bool:
        try:
            return bool(self.witness_slots(request.request_id, self._window))
        except RuntimeError:
            return False

    def standin_slots(self, request_id: int) -> list[int]:
        """Tests ask where the first beam's blocks lie."""
        slots: list[int] = self.witness_slots(request_id, self._window)[0]
        return slots

    def standin_offsets(self, table: Any, request_id: int) -> None:
        """Tests ask for the rows of one request, past whatever stands in the way of those that ask."""
        _Bound.copy_batch_block_offsets(self, table, [request_id], 1, 0)

    def _run_transfers(self) -> None:
        asked = self.witness_take_transfers()
        self._pools.run(
            (kind, source, target, len(tokens))
            for kind, window, source, target, tokens in asked
            if window == self._window
        )
