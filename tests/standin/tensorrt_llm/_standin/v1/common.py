"""The V1 manager has this in every variant (surface 1.2, 1.4)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native

from ...bindings import DataType
from ...bindings.internal.batch_manager import CacheType
from ...bindings.internal.batch_manager import KVCacheManager as KVCacheManagerCpp
from ..tensors import tensors
from ..variant import NAME, since
from .base import BaseResourceManager


@contextmanager
def request_context(is_draft: bool, scheduled_requests: Any) -> Iterator[None]:
    """Chooses which half of a request counts. The target's requests are left as they are."""
    requests = scheduled_requests.all_requests() if is_draft else []
    for request in requests:
        request.use_draft_model = True
    try:
        yield
    finally:
        for request in requests:
            request.use_draft_model = False


class KVCacheManagerCommon(BaseResourceManager):
    def __init__(
        self,
        kv_cache_config: Any,
        kv_cache_type: Any,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        tokens_per_block: int,
        max_seq_len: int,
        max_batch_size: int,
        mapping: Any = None,
        dtype: Any = None,
        spec_config: Any = None,
        layer_mask: Any = None,
        max_num_tokens: int = 8192,
        model_config: Any = None,
        max_beam_width: int = 1,
        is_draft: bool = False,
        kv_connector_manager: Any = None,
        execution_stream: Any = None,
        is_estimating_kv_cache: bool = False,
        enable_chunked_prefill: bool = False,
        **_unused: Any,  # unknown keywords are swallowed, as upstream does (surface 1.2)
    ) -> None:
        del mapping, dtype, layer_mask, model_config, is_estimating_kv_cache
        self.kv_cache_type = kv_cache_type
        self.kv_factor = 1 if kv_cache_type is CacheType.SELFKONLY else 2
        self.num_local_layers = num_layers
        self.tokens_per_block = tokens_per_block
        self.max_seq_len = max_seq_len
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.max_beam_width = max_beam_width
        self.is_draft = is_draft
        self.enable_chunked_prefill = enable_chunked_prefill
        windows = kv_cache_config.max_attention_window or [max_seq_len]
        self.max_attention_window_vec = [min(window, max_seq_len) for window in windows]
        self.is_vswa = len(set(self.max_attention_window_vec)) > 1
        self.enable_block_reuse = kv_cache_config.enable_block_reuse
        self.kv_connector_manager = kv_connector_manager
        self.num_extra_kv_tokens = 0 if spec_config is None else spec_config.num_extra_kv_tokens
        self.max_draft_len = 0 if spec_config is None else spec_config.max_draft_len
        self.max_blocks_per_seq = -(-max_seq_len // tokens_per_block)
        # In A a stream of its own, ordered with nothing; since B the one that forward runs on (surface 1.2, 10).
        self._stream = tensors().stream() if execution_stream is None else execution_stream
        self.blocks_in_primary_pool = kv_cache_config.max_blocks
        self.impl = self._make_impl(kv_cache_config, num_kv_heads, head_dim)
        self.num_pools = self.impl.num_pools
        if since("B"):  # in A the attention metadata owns the table
            rows = max_batch_size * max_beam_width
            self.host_kv_cache_block_offsets = tensors().pinned(self.num_pools, rows, 2, self.max_blocks_per_seq)

    def _make_impl(self, kv_cache_config: Any, num_kv_heads: int, head_dim: int) -> Any:
        return KVCacheManagerCpp(
            num_kv_heads_per_layer=[num_kv_heads] * self.num_local_layers,
            # A list with a size for each layer in stable 1.2, and in no other.
            **({"size_per_head_per_layer": [head_dim]} if NAME == "B" else {"size_per_head": head_dim}),
            tokens_per_block=self.tokens_per_block,
            blocks_per_window=dict.fromkeys(
                self.max_attention_window_vec, (kv_cache_config.max_blocks, kv_cache_config.host_blocks)
            ),
            max_num_sequences=self.max_batch_size,
            max_beam_width=self.max_beam_width,
            max_attention_window_vec=self.max_attention_window_vec,
            temp_attention_window_inputs=None,
            dtype=DataType.HALF,
            sink_token_length=0,
            stream=self._stream.cuda_stream,
            max_sequence_length=self.max_seq_len,
            enable_block_reuse=kv_cache_config.enable_block_reuse,
            cache_type=self.kv_cache_type,
            enable_partial_reuse=kv_cache_config.enable_partial_reuse,
            copy_on_partial_reuse=kv_cache_config.copy_on_partial_reuse,
            kv_connector_manager=self.kv_connector_manager,
        )

    # Admission arithmetic.

    def get_max_resource_count(self) -> int:
        return int(self.impl.max_num_blocks)

    def get_needed_resource_to_completion(self, request: Any) -> int:
        return int(self.impl.get_remaining_blocks_to_completion(request, self.max_seq_len))

    # The life of a request.

    def _kv_connector_should_add_sequence(self, request: Any) -> bool:
        """A sequence that an asynchronous load of the connector has brought already is not added (surface 6.1)."""
        return self.kv_connector_manager is None or bool(self.kv_connector_manager.should_add_sequence(request))

    def update_resources(
        self, scheduled_batch: Any, attn_metadata: Any = None, kv_cache_dtype_byte_size: float | None = None
    ) -> None:
        del attn_metadata, kv_cache_dtype_byte_size  # for the relocation of accepted tree drafts
        for request in scheduled_batch.generation_requests:
            # A paused request is back in CONTEXT_INIT, and its blocks are gone.
            if request.is_generation_complete_state or (since("B") and request.is_context_init_state):
                continue
            if request.py_rewind_len > 0:
                self.rewind_kv_cache(request, request.py_rewind_len)
        for request in scheduled_batch.context_requests:
            self.impl.store_context_blocks(request)

    def free_resources(self, request: Any, pin_on_release: bool = False) -> None:
        self.impl.remove_sequence(request.py_request_id, request, pin_on_release)

    def rewind_kv_cache(self, request: Any, rewind_len: int) -> None:
        self.impl.rewind_kv_cache(request.py_request_id, rewind_len)

    def pin_blocks(self, request_id: int) -> None:
        self.impl.pin_blocks(request_id)

    def store_blocks_for_reuse(self, request: Any, pin_blocks: bool = False) -> Any:
        return self.impl.store_blocks_for_reuse(request.py_request_id, request, pin_blocks)

    def unpin_blocks_by_id(self, kv_cache_block_id: Any) -> None:
        self.impl.unpin_blocks_by_id(kv_cache_block_id)

    if since("B"):

        def reset_reuse_state(self) -> None:
            self.impl.reset_reuse_state()

    def shutdown(self) -> None:
        self.impl.release_pools()

    # Attributes that others read.

    def get_cache_indices(self, request: Any, window_size: int | None = None) -> list[int]:
        window = self.max_attention_window_vec[0] if window_size is None else window_size
        return list(self.impl.get_cache_block_ids(request.py_request_id, window)[0])

    def get_batch_cache_indices(self, request_ids: Sequence[int], layer_idx: int | None = None) -> list[list[int]]:
        """Block ids, not pool slots (surface 1.4)."""
        del layer_idx
        ids = self.impl.get_batch_cache_block_ids(list(request_ids), self.max_attention_window_vec[0])
        return [beams[0] for beams in ids]

    def get_unique_primary_pool(self) -> Any:
        return self.impl.get_unique_primary_pool()

    if since("D"):

        def commit_and_get_block_hashes(self, request: Any) -> list[int]:
            """The hash of every block that the request's tokens fill, as events would name it."""
            tokens = request.get_tokens(0)
            sequence = native.SequenceRequest(
                request.request_id, tokens, lora_id=request.lora_task_id, salt=request.cache_salt_id
            )
            return native.block_hashes(sequence, self.impl.native.config)

    def get_num_free_blocks(self) -> int:
        return int(self.impl.get_kv_cache_stats().free_num_blocks)

    def get_kv_cache_stats(self) -> Any:
        return self.impl.get_kv_cache_stats()

    # For the tests.

    def standin_truth(self, request_ids: Sequence[int], beam_widths: Sequence[int]) -> npt.NDArray[np.int32]:
        """The table that this batch should have: (pools, rows, 2, blocks), -1 where a row has no block."""
        rows = np.full((self.num_pools, sum(beam_widths), 2, self.max_blocks_per_seq), -1, np.int32)
        row = 0
        for request_id, width in zip(request_ids, beam_widths, strict=True):
            # A sequence writes all of its beams, also where a context has one row.
            one = np.full((self.num_pools, self.max_beam_width, 2, self.max_blocks_per_seq), -1, np.int32)
            self.impl.standin_offsets(one, request_id)
            rows[:, row : row + width] = one[:, :width]
            row += width
        return rows
