"""The V1 manager's methods that it and the loops need and no excerpt holds: as few as will do."""

from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream.doubles import Double, called


class Manager:
    """The V1 manager's own methods and the loops call these on it."""

    def __init__(self: Any, config: Any, kind: Any, **named: Any) -> None:
        given = SimpleNamespace(**named)
        self.mapping, self.dtype, self.kv_cache_type = given.mapping, given.dtype, kind
        self.is_draft, self.num_extra_kv_tokens, self.event_buffer_max_size = False, 0, 0
        self.kv_connector_manager = given.kv_connector_manager
        self.tokens_per_block, self.max_seq_len = given.tokens_per_block, given.max_seq_len
        self.max_batch_size, self.kv_factor, self.max_beam_width = given.max_batch_size, 2, given.max_beam_width
        self.num_layers = self.num_local_layers = given.num_layers
        self.max_attention_window_vec = config.max_attention_window or [given.max_seq_len]
        windows = self.max_attention_window_vec
        self.is_vswa = any(window != windows[0] for window in windows)
        self.enable_block_reuse, self.enable_partial_reuse = config.enable_block_reuse, config.enable_partial_reuse
        self.max_draft_len = self.max_total_draft_tokens = self._kv_reserve_draft_tokens = 0
        self.enable_chunked_prefill = given.chunked
        self.is_linear_attention = self.enable_indexer_k_cache = False
        self.max_num_tokens = given.max_num_tokens
        self._stream = given.execution_stream
        impl = self.impl = given.bound(
            num_kv_heads_per_layer=given.num_kv_heads,
            size_per_head=given.head_dim,
            tokens_per_block=given.tokens_per_block,
            blocks_per_window=given.blocks_per_window,
            max_num_sequences=given.max_batch_size,
            max_beam_width=given.max_beam_width,
            max_attention_window_vec=windows,
            temp_attention_window_inputs=None,
            dtype=given.dtype,
            sink_token_length=0,
            stream=self._stream.cuda_stream,
            max_sequence_length=given.max_seq_len,
            enable_block_reuse=config.enable_block_reuse,
            kv_connector_manager=self.kv_connector_manager,
        )
        impl.allocate_pools(False)
        self.kv_cache_pool_pointers = impl.get_block_pool_pointers()
        self.kv_cache_pool_mapping = impl.get_layer_to_pool_mapping()
        self.num_pools, self.max_blocks_per_seq = self.impl.num_pools, self.impl.max_blocks_per_seq
        rows = given.max_batch_size * given.max_beam_width
        self.host_kv_cache_block_offsets = torch.empty(
            self.num_pools, rows, 2, self.max_blocks_per_seq, dtype=torch.int32, pin_memory=True, device="cpu"
        )

    def lenient(self: Any, name: str) -> Any:
        if name.startswith("__") or name == "impl":
            raise AttributeError(name)
        called.add(f"KVCacheManager.{name}")
        return Double()

    def _validate_and_adjust_attention_windows(self, **given: Any) -> tuple[Any, int, list[int]]:
        return given["blocks_per_window"], given["max_seq_len"], given["max_attention_window_vec"]

    def _set_temp_attention_window_inputs(self) -> None:
        return None

    def calculate_max_num_blocks(self, **_: Any) -> Any:
        raise LookupError("the scenario chooses the number of blocks")

    def calculate_max_num_blocks_for_vswa(self, **_: Any) -> Any:
        raise LookupError("the scenario chooses the number of blocks")

    calculate_max_num_blocks_from_cpp = calculate_max_num_blocks_for_vswa

    def get_cache_indices(self: Any, request: Any, window_size: int | None = None) -> list[int]:
        window = window_size or self.max_attention_window_vec[0]
        found: list[int] = self.impl.get_cache_block_ids(request.py_request_id, window)[0]
        return found

    def commit_and_get_block_hashes(self: Any, request: Any, window_size: int | None = None) -> list[int]:
        """The extension of the tests names no blocks."""
        if not hasattr(self.impl, "commit_and_get_block_hashes_for_request"):
            return []
        window = window_size or self.max_attention_window_vec[0]
        return list(self.impl.commit_and_get_block_hashes_for_request(request, window))

    def get_priority_by_block_id(self: Any, block_id: int, window_size: int | None = None) -> int:
        return int(self.impl.get_priority_by_block_id(block_id, window_size or self.max_attention_window_vec[0]))

    def unpin_blocks_by_id(self: Any, block_id: Any) -> None:
        self.impl.unpin_blocks_by_id(block_id)

    def get_unique_primary_pool(self: Any) -> Any:
        return self.impl.get_unique_primary_pool()

    def rewind_kv_cache(self: Any, request: Any, rewind_len: int) -> None:
        self.impl.rewind_kv_cache(request.py_request_id, rewind_len)

    def get_num_free_blocks(self: Any) -> int:
        return int(self.impl.get_kv_cache_stats().free_num_blocks)
