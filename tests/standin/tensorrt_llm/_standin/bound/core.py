"""The stand-in's C++ cache manager: books kept by `trtllm_kvfix.native.BlockManager`, copies run on a stream.

Names and argument conventions are those of the nanobind class (surface 4.2, 4.3): unnamed arguments stay positional,
and nothing that upstream declares without a default has one. The native calls release the GIL, as nearly all of
upstream's do, so another Python thread may enter between any two of them (surface 4.3).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from trtllm_kvfix import native

from ..tensors import tensors
from ..variant import before, since


@dataclass(frozen=True)
class KvCacheStats:
    """Surface 4.1."""

    max_num_blocks: int
    free_num_blocks: int
    used_num_blocks: int
    tokens_per_block: int
    reused_blocks: int
    missed_blocks: int
    cache_hit_rate: float


class BoundCore:
    """What every variant has. The pools are a few words per token: they give the copies something to copy."""

    WORDS_PER_TOKEN = 4

    def __init__(
        self,
        *,
        num_layers: int,
        kv_factor: int,
        tokens_per_block: int,
        blocks_per_window: dict[int, tuple[int, int]],
        stream: int,
        max_beam_width: int = 1,
        enable_block_reuse: bool = True,
        enable_partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        kv_connector_manager: Any = None,
        **_unused: Any,  # sizes and types of the real pools
    ) -> None:
        ((self.window, (primary, secondary)),) = blocks_per_window.items()
        self.native = native.BlockManager(
            native.BlockManagerConfig(
                tokens_per_block=tokens_per_block,
                blocks_primary=primary,
                blocks_host=secondary,
                max_beam_width=max_beam_width,
                block_reuse=enable_block_reuse,
                partial_reuse=enable_partial_reuse,
                copy_on_partial_reuse=copy_on_partial_reuse,
            )
        )
        self.tokens_per_block = tokens_per_block
        self.enable_block_reuse = enable_block_reuse
        self.num_pools = 1
        self.is_variable_window = False
        # An offset counts in layers and in K and V; V lies behind K (surface 1.6, rows of the table).
        self.offset_scale = num_layers * kv_factor
        self.v_offset = kv_factor - 1
        self._connector = kv_connector_manager
        self._tensors = tensors()
        self._buffer_stream = self._tensors.external_stream(stream)  # the BufferManager's (surface 1.2)
        self._transfer_stream = self._tensors.stream()
        self._transferred = self._tensors.event()
        self._transfers_pending = False
        block_shape = tokens_per_block, self.WORDS_PER_TOKEN
        self._primary = self._tensors.on_device(primary, *block_shape)
        self._secondary = self._tensors.pinned(max(1, secondary), *block_shape)
        self._lengths: dict[int, int] = {}  # positions reserved, by request id
        self._chains: dict[int, list[list[int]]] = {}  # until C: pinned blocks, by the last of them

    # Sequences.

    def _add_token(self, request_id: int, /) -> None:
        with self._taking_blocks():
            self.native.add_token(request_id)
        self._lengths[request_id] += 1
        self._run_transfers()

    def remove_sequence(self, request_id: int, llm_request: Any, pin_on_release: bool, /) -> None:
        """Stores for reuse when the request is no dummy and has one beam (surface 4.4, release)."""
        length = self._lengths.get(request_id)
        if length is None:
            return
        _refuse_none(request_id, llm_request, pin_on_release)
        stored = not llm_request.is_dummy_request and llm_request.sampling_config.beam_width == 1
        if stored and llm_request.context_remaining_length:
            self._store_early_end(llm_request)
            stored = False
        self._lengths.pop(request_id)
        tokens = llm_request.get_tokens(0)[:length] if stored else None
        # Until C whatever the sequence holds is stored, computed or not (surface 4.4).
        computed = None if tokens is None else len(tokens)
        self.native.remove_sequence(request_id, store=stored, pin=pin_on_release, tokens=tokens, computed=computed)

    def rewind_kv_cache(self, request_id: int, count: int, /) -> None:
        self.native.rewind_kv_cache(request_id, count)
        self._lengths[request_id] -= count

    def store_context_blocks(self, llm_request: Any, /) -> None:
        """In A and B the whole prompt, computed or not; later what the position says (#12673)."""
        if llm_request.request_id not in self._lengths:
            return
        computed = llm_request.context_current_position
        if before("C"):
            last = llm_request.prompt_len - 1
            computed = min(computed, last) if since("B2") else last
        self.native.store_context_blocks(llm_request.request_id, computed)

    def _store_early_end(self, llm_request: Any) -> None:
        """It was cancelled, and the rest of its prompt will never be computed. Until C it is stored nevertheless."""
        if before("C"):
            self.native.store_context_blocks(llm_request.request_id, llm_request.prompt_len - 1)
        else:
            self.store_context_blocks(llm_request)

    def store_blocks_for_reuse(self, request_id: int, llm_request: Any, pin_blocks: bool, /) -> Any:
        """The pinned ids; until the batch came, only the last of them (surface 4.4)."""
        if llm_request.context_remaining_length:
            self._store_early_end(llm_request)
        else:
            self.store_context_blocks(llm_request)
        if not pin_blocks:
            return [] if since("C") else None
        pinned = self.native.pin_blocks(request_id)
        if since("C"):
            return pinned
        self._chains.setdefault(pinned[-1], []).append(pinned)
        return pinned[-1]

    def pin_blocks(self, request_id: int, /) -> None:
        self.native.pin_blocks(request_id)

    def unpin_blocks_by_id(self, block_ids: Any, /) -> None:
        """A list, or until C one id, which stands for the blocks before it as well (surface 1.4)."""
        self.native.unpin_blocks_by_id(self._chains[block_ids].pop() if isinstance(block_ids, int) else block_ids)

    # Tables.

    def get_cache_block_ids(self, request_id: int, window_size: int, /) -> list[list[int]]:
        assert window_size == self.window, f"window {window_size} is not managed; {self.window} is"
        return self.native.get_cache_block_ids(request_id)

    def get_batch_cache_block_ids(self, request_ids: Sequence[int], window_size: int, /) -> list[list[list[int]]]:
        return [self.get_cache_block_ids(request_id, window_size) for request_id in request_ids]

    def copy_batch_block_offsets(self, output: Any, request_ids: Sequence[int], beam_width: int, offset: int) -> None:
        """A synchronous write into host memory: row `i * beam_width + offset` on (surface 4.3)."""
        self.native.copy_batch_block_offsets(
            output.numpy(), list(request_ids), beam_width, offset, scale=self.offset_scale, v_offset=self.v_offset
        )

    def get_unique_primary_pool(self) -> Any:
        return self._primary

    # Numbers.

    def get_num_free_blocks(self) -> int:
        tier = self.native.get_kv_cache_stats().windows[0].primary
        return tier.free + tier.cached

    @property
    def max_num_blocks(self) -> int:
        return self.native.get_kv_cache_stats().max_num_blocks

    def get_kv_cache_stats(self) -> KvCacheStats:
        stats = self.native.get_kv_cache_stats()
        return KvCacheStats(
            max_num_blocks=stats.max_num_blocks,
            free_num_blocks=stats.free_num_blocks,
            used_num_blocks=stats.used_num_blocks,
            tokens_per_block=stats.tokens_per_block,
            reused_blocks=stats.total.blocks_reused,
            missed_blocks=stats.total.blocks_missed,
            cache_hit_rate=stats.cache_hit_rate,
        )

    def get_remaining_blocks_to_completion(self, llm_request: Any, window_size: int, /) -> int:
        """What the request would take alone, with nothing reused (surface 5)."""
        assert window_size == self.window
        total: int = -(-(llm_request.prompt_len + llm_request.max_new_tokens) // self.tokens_per_block)
        held = len(self.native.get_cache_block_ids(llm_request.request_id)[0]) if self._knows(llm_request) else 0
        return max(0, total - held)

    def _estimate_reuse(self, llm_request: Any) -> int:
        """What the C++ scheduler asks of the C++ manager, past anything that Python can see (surface 5)."""
        return self.native.analyze_prefix_reuse(self._request(llm_request)).tokens

    def release_pools(self) -> None:
        self._transfer_stream.synchronize()

    # What is behind them.

    def _taking_blocks(self) -> AbstractContextManager[None]:
        """Around whatever may take a free block; pins.py has what upstream does not lock there."""
        return nullcontext()

    def _knows(self, llm_request: Any) -> bool:
        return llm_request.request_id in self._lengths

    def _admitted(self, llm_request: Any, admission: native.Admission) -> None:
        """setPrepopulatedPromptLen comes after allocation, and the connector is asked inside it (surface 4.4)."""
        reused = admission.tokens_reused
        if self._connector is not None:
            reused += self._connector.get_num_new_matched_tokens(llm_request, reused)
        self._lengths[llm_request.request_id] = llm_request.prompt_len
        llm_request.set_prepopulated_prompt_len(reused, self.tokens_per_block)

    def _request(self, llm_request: Any) -> native.SequenceRequest:
        return native.SequenceRequest(
            llm_request.request_id,
            llm_request.get_tokens(0)[: llm_request.prompt_len],
            beam_width=llm_request.sampling_config.beam_width,
            lora_id=llm_request.lora_task_id,
            salt=llm_request.cache_salt_id,
        )

    def _run_transfers(self) -> None:
        """Enqueues what the books asked for. `refresh_blocks`, where it exists, orders the next step behind it."""
        batch = self.native.take_transfers()
        if batch.items:
            with self._tensors.on(self._transfer_stream):
                for item in batch.items:
                    dst = self._secondary if item.kind == "offload" else self._primary
                    src = self._secondary if item.kind == "onboard" else self._primary
                    tokens = slice(item.tokens)  # of a block that is reused in part, only those that match
                    dst[item.slot_dst][tokens].copy_(src[item.slot_src][tokens], non_blocking=True)
                self._transferred.record()
            self._transfers_pending = True
        self.native.complete(batch.ticket)


def _refuse_none(*arguments: Any) -> None:
    """Arguments that are bound without names take no None, whatever C++ would take."""
    if any(argument is None for argument in arguments):
        raise TypeError("remove_sequence(): incompatible function arguments")
