"""The V2 manager has this in every variant that has one (surface 2.2, 2.5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...bindings.internal.batch_manager.kv_cache_manager_v2_utils import IndexMapper
from ...runtime.kv_cache_manager_v2 import BAD_PAGE
from ...runtime.kv_cache_manager_v2 import KVCacheManager as KVCacheManagerPy
from .. import dummies
from ..tensors import tensors
from ..v1.base import BaseResourceManager
from ..variant import since
from .connected import ConnectedV2
from .per_layer import PerLayerBuffers
from .served import ServedPrefixes

NUM_POOLS = 2  # two groups of layers, in which a page has another weight


class KVCacheManagerV2Common(ServedPrefixes, ConnectedV2, PerLayerBuffers, BaseResourceManager):
    add_dummy_requests = dummies.adder(dummies.add_v2)

    def __init__(
        self,
        kv_cache_config: Any,
        kv_cache_type: Any,
        *,
        num_layers: int,
        tokens_per_block: int,
        max_seq_len: int,
        max_batch_size: int,
        vocab_size: int,
        max_num_tokens: int = 8192,
        max_beam_width: int = 1,
        is_draft: bool = False,
        kv_connector_manager: Any = None,
        execution_stream: Any = None,
        **_unused: Any,
    ) -> None:
        del num_layers, vocab_size
        assert since("F") or kv_connector_manager is None, "KVCacheManagerV2 takes no connector"
        assert max_beam_width == 1, "KVCacheManagerV2 takes no beams"
        assert since("D") or kv_cache_config.event_buffer_max_size == 0, "KVCacheManagerV2 sends no events"
        self.kv_cache_type = kv_cache_type
        self.tokens_per_block = tokens_per_block
        self.max_seq_len = max_seq_len
        self.max_batch_size = max_batch_size
        self.max_num_tokens = max_num_tokens
        self.max_beam_width = max_beam_width
        self.is_draft = is_draft
        self.kv_connector_manager = kv_connector_manager
        self.num_pools = NUM_POOLS
        self._stream = tensors().stream() if execution_stream is None else execution_stream
        self.enable_block_reuse = kv_cache_config.enable_block_reuse
        window = min(kv_cache_config.max_attention_window or [max_seq_len])
        self._slides = since("F") and window < max_seq_len
        self.impl = (
            self._sliding(kv_cache_config, window)
            if self._slides
            else KVCacheManagerPy(
                tokens_per_block, kv_cache_config.max_blocks, enable_block_reuse=kv_cache_config.enable_block_reuse
            )
        )
        capacity = max_batch_size + 1  # and one for a dummy
        self.index_mapper = IndexMapper(capacity, max_beam_width)
        self.kv_cache_map: dict[int, Any] = {}
        self.max_blocks_per_seq = -(-max_seq_len // tokens_per_block)
        # Only plane 0 holds data; rows are written by the caches (surface 2.2).
        width = -(-self.max_blocks_per_seq // 4) * 4
        self.host_kv_cache_block_offsets = tensors().pinned(NUM_POOLS, capacity * max_beam_width, 2, width)
        self.max_blocks_per_seq = width
        if since("D"):
            self._use_per_layer_page_tables = kv_cache_config.enable_swa_scratch_reuse
            if self._use_per_layer_page_tables:
                self.allocate_per_layer(max_batch_size)
        if since("B2"):
            self.index_scales = tensors().pinned(NUM_POOLS)
            self.kv_offset = tensors().pinned(NUM_POOLS)
            self.index_scales.numpy()[:] = [2, 6]
            self.kv_offset.numpy()[:] = [1, 3]

    def _sliding(self, config: Any, window: int) -> Any:
        from .sliding import SlidingRuntime  # noqa: PLC0415  a server without windows needs nothing of the rig

        shares_parts = config.enable_partial_reuse
        return SlidingRuntime(
            self.tokens_per_block, config.max_blocks, window, reuse=config.enable_block_reuse, shares_parts=shares_parts
        )

    # Calls of the scheduler and the loop.

    def get_max_resource_count(self) -> int:
        return self.max_batch_size

    def get_needed_resource_to_completion(self, request: Any) -> int:
        return -(-int(request.prompt_len + request.max_new_tokens) // self.tokens_per_block)

    def is_request_active(self, request_id: int) -> bool:
        return request_id in self.kv_cache_map and self.kv_cache_map[request_id].is_active

    def prepare_context(self, request: Any) -> bool:
        """Gives the request a cache and a row, and the row its pages."""
        reused = self.prepare_context_cache(request)
        if reused is not None and not self.is_draft:
            self._settle_position(request, reused)
        return reused is not None

    def prepare_context_cache(self, request: Any, reuse_limit: int | None = None) -> int | None:
        """None where there is no room. The limit is one of the tokens that are matched, and late builds have it."""
        known = self.kv_cache_map.get(request.py_request_id)
        if known is None:
            tokens = request.get_tokens(0)[: request.prompt_len]
            known = self._created(request, tokens, tokens[: request.prompt_len - 1][:reuse_limit])
        return None if known is None else int(known.num_committed_tokens)

    def _created(self, request: Any, tokens: list[int], matching: list[int]) -> Any:
        ours = {"matching": matching if self.enable_block_reuse else None} if self._slides else {}
        kv_cache = self.impl.create_kv_cache(request.py_request_id, tokens, request.cache_salt_id, **ours)
        if kv_cache is not None:
            self.kv_cache_map[request.py_request_id] = kv_cache
            self.index_mapper.add_new_sequence(request.py_request_id)
            self._set_page_index_bufs(request.py_request_id)
        return kv_cache

    def _settle_position(self, request: Any, reused: int) -> None:
        """A bound method came late. Before it V2 wrote position and chunk, and no prepopulated length (surface 4.4)."""
        if since("C"):
            request.set_prepopulated_prompt_len(reused, self.tokens_per_block)
            return
        end = reused + request.context_chunk_size
        request.context_current_position = reused
        if end < request.prompt_len:
            end -= end % self.tokens_per_block
        request.context_chunk_size = end - reused

    def try_allocate_generation(self, request: Any) -> bool:
        kv_cache = self.kv_cache_map[request.py_request_id]
        return bool(kv_cache.resize(kv_cache.capacity + 1 + len(request.py_draft_tokens)))

    if since("B2"):

        def prepare_resources(self, scheduled_batch: Any) -> None:
            """Scheduling has allocated for the main manager; a draft manager follows it here (surface 2.5)."""
            if self.is_draft:
                self._allocate(scheduled_batch)
            elif since("F"):
                self.ask_connector(scheduled_batch)

    else:

        def prepare_resources(self, scheduled_batch: Any) -> None:
            self._allocate(scheduled_batch)

    def _allocate(self, scheduled_batch: Any) -> None:
        for request in scheduled_batch.context_requests:
            if request.py_request_id not in self.kv_cache_map:
                self.prepare_context(request)
        for request in scheduled_batch.generation_requests:
            self.try_allocate_generation(request)

    def update_context_resources(self, scheduled_batch: Any) -> None:
        for request in scheduled_batch.context_requests:
            if self.is_request_active(request.py_request_id):
                self.kv_cache_map[request.py_request_id].commit(request.context_current_position)

    def update_resources(self, scheduled_batch: Any) -> None:
        """Generations only, where contexts have a call of their own; inactive caches are skipped (surface 2.5)."""
        if not since("B2"):
            self.update_context_resources(scheduled_batch)
        for request in scheduled_batch.generation_requests:
            if request.py_rewind_len > 0 and self.is_request_active(request.py_request_id):
                kv_cache = self.kv_cache_map[request.py_request_id]
                kv_cache.resize(kv_cache.capacity - request.py_rewind_len)

    def suspend_request(self, request: Any) -> None:
        self.kv_cache_map[request.py_request_id].suspend()

    def resume_request(self, request: Any) -> bool:
        kv_cache = self.kv_cache_map[request.py_request_id]
        resumed = kv_cache.resume(self._stream.cuda_stream)
        if since("F"):
            self._restore_page_index_bufs(request.py_request_id, kv_cache)
        else:
            self._set_page_index_bufs(request.py_request_id)
        return bool(resumed)

    if since("F"):

        def _restore_page_index_bufs(self, request_id: int, _kv_cache: Any) -> None:
            self._set_page_index_bufs(request_id)

    def free_resources(self, request: Any) -> None:
        kv_cache = self.kv_cache_map.pop(request.py_request_id)
        tokens = request.get_tokens(0)
        # Nobody has computed the token that was sampled last.
        computed = request.context_current_position if request.context_remaining_length else len(tokens) - 1
        if since("F"):
            self.forget_connector_state(request)
        kv_cache.close(tokens, computed)  # while it has its row, which it rewrites
        self.index_mapper.remove_sequence(request.py_request_id)

    def shutdown(self) -> None:
        self.kv_cache_map.clear()

    def _set_page_index_bufs(self, request_id: int) -> None:
        kv_cache = self.kv_cache_map[request_id]
        register = kv_cache.set_base_page_index_buf if since("B2") else kv_cache.set_page_index_buf
        row = self.index_mapper.get_index(request_id) * self.max_beam_width
        for pool in range(self.num_pools):
            register(0, pool, memoryview(self.host_kv_cache_block_offsets[pool, row, 0].numpy()))

    # Attributes that others read.

    def get_num_free_blocks(self) -> int:
        return int(self.impl.free_blocks())

    def get_batch_cache_indices(self, request_ids: Sequence[int], layer_idx: int | None = None) -> list[list[int]]:
        del layer_idx
        return [self.impl.pages_of(request_id) for request_id in request_ids]

    def standin_truth(self, request_ids: Sequence[int], beam_widths: Sequence[int]) -> npt.NDArray[np.int32]:
        """Tests ask what attention should see of this batch: (pools, rows, 2, blocks), -1 where nothing."""
        assert set(beam_widths) <= {1}
        scales, offsets = self._scales_and_offsets()
        rows = np.full((self.num_pools, len(request_ids), 2, self.max_blocks_per_seq), -1, np.int32)
        for row, request_id in enumerate(request_ids):
            for pool in range(self.num_pools):
                pages = np.array(self.impl.pages_of(request_id, pool), np.int32)
                keys = np.where(pages == BAD_PAGE, BAD_PAGE, pages * scales[pool])
                rows[pool, row, 0, : len(pages)] = keys
                rows[pool, row, 1, : len(pages)] = np.where(pages == BAD_PAGE, BAD_PAGE, keys + offsets[pool])
        return rows

    def _scales_and_offsets(self) -> tuple[list[int], list[int]]:
        if since("B2"):
            return self.index_scales.tolist(), self.kv_offset.tolist()
        return [1] * self.num_pools, [1] * self.num_pools
