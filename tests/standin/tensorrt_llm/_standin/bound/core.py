"""The bound cache manager from C on, in Python: books kept by `trtllm_kvfix.native.BlockManager`.

Variants until B2 have the extension's manager and its books (`witnessed.py`). This one stands for the later builds,
whose pins have unlocked steps between which a test must be able to step in (`pins.py`). It declares its methods as
nanobind would: unnamed arguments stay positional, None is refused, no attribute can be added (surface 4.2, 4.3). The
native calls release the GIL, as nearly all of upstream's do, so another Python thread may enter between any two.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtllm_kvfix import native

from ..extension import era
from ..nanobind import bound
from .pools import Pools, parts_of


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
    num_free_blocks_per_window_size: dict[int, int]


class BoundCore:
    """The part that every variant has."""

    __slots__ = (
        "_connector",
        "_lengths",
        "_pools",
        "enable_block_reuse",
        "native",
        "num_pools",
        "offset_scale",
        "tokens_per_block",
        "v_offset",
        "window",
    )

    def __init__(
        self,
        *,
        num_kv_heads_per_layer: list[int],
        tokens_per_block: int,
        blocks_per_window: dict[int, tuple[int, int]],
        stream: int,
        max_beam_width: int,
        enable_block_reuse: bool = False,
        enable_partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        cache_type: Any = None,
        kv_connector_manager: Any = None,
        events_max: int = 0,  # of ours
        **_unused: Any,  # sizes and types of the real pools
    ) -> None:
        if len(blocks_per_window) > 1:
            raise ValueError(f"windows {sorted(blocks_per_window)}: from C on, the stand-in takes one")
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
                events_max=events_max,
            )
        )
        self.tokens_per_block = tokens_per_block
        self.enable_block_reuse = enable_block_reuse
        self.num_pools = 1
        # An offset counts in layers and in K and V; V lies behind K (surface 1.6, rows of the table).
        layers, parts = len(num_kv_heads_per_layer), parts_of(cache_type)
        self.offset_scale = layers * parts
        self.v_offset = parts - 1
        self._connector = kv_connector_manager
        self._pools = Pools(
            block_shape=(layers, parts, tokens_per_block), primary=primary, secondary=secondary, stream=stream
        )
        self._lengths: dict[int, int] = {}  # positions reserved, by request id

    # Sequences.

    @bound
    def _add_token(self, request_id: int, detach_swa_front_blocks: bool = True) -> None:
        del detach_swa_front_blocks
        with self._taking_blocks():
            self.native.add_token(request_id)
        self._lengths[request_id] += 1
        self._run_transfers()

    @bound
    def remove_sequence(self, request_id: int, llm_request: Any, pin_on_release: bool, /) -> None:
        """Stores what has been computed, unless the request is a dummy or has beams (surface 4.4, release)."""
        length = self._lengths.get(request_id)
        if length is None:
            return
        stored = not llm_request.is_dummy_request and llm_request.sampling_config.beam_width == 1
        if stored and llm_request.context_remaining_length:
            # The rest of its prompt will never be computed.
            self._store_computed(llm_request)
            stored = False
        self._lengths.pop(request_id)
        if not stored:
            self.native.remove_sequence(request_id, store=False, pin=pin_on_release)
            return
        tokens = llm_request.get_tokens(0)
        computed = min(length, len(tokens) - 1)  # nobody has computed the token that was sampled last
        self.native.remove_sequence(request_id, pin=pin_on_release, tokens=tokens[:length], computed=computed)

    @bound
    def rewind_kv_cache(self, request_id: int, count: int, /) -> None:
        self.native.rewind_kv_cache(request_id, count)
        self._lengths[request_id] -= count

    @bound
    def reset_reuse_state(self) -> None:
        self.native.reset_reuse_state()

    @bound
    def store_context_blocks(self, llm_request: Any, /) -> None:
        self._store_computed(llm_request)

    @bound
    def store_blocks_for_reuse(self, request_id: int, llm_request: Any, pin_blocks: bool, /) -> list[int]:
        """The pinned ids."""
        self._store_computed(llm_request)
        return self._pin_held(request_id) if pin_blocks else []

    @bound
    def pin_blocks(self, request_id: int, /) -> None:
        self._pin_held(request_id)

    @bound
    def unpin_blocks_by_id(self, block_ids: Sequence[int], /) -> None:
        self.native.unpin_blocks_by_id(block_ids)

    # Tables.

    @bound
    def get_cache_block_ids(self, request_id: int, window_size: int, /) -> list[list[int]]:
        if window_size != self.window or request_id not in self._lengths:
            raise RuntimeError(f"no request {request_id} in a window of {window_size}; {self.window} is managed")
        return self.native.get_cache_block_ids(request_id)

    @bound
    def get_last_block_id(self, request_id: int, /) -> int:
        return int(self.get_cache_block_ids(request_id, self.window)[0][-1])

    @bound
    def get_batch_cache_block_ids(self, request_ids: Sequence[int], window_size: int, /) -> list[list[list[int]]]:
        return [self.get_cache_block_ids(request_id, window_size) for request_id in request_ids]

    @bound
    def copy_batch_block_offsets(self, output: Any, request_ids: Sequence[int], beam_width: int, offset: int) -> None:
        """A synchronous write into host memory: row `i * beam_width + offset` on (surface 4.3)."""
        table = output if isinstance(output, np.ndarray) else output.numpy()
        self.native.copy_batch_block_offsets(
            table, list(request_ids), beam_width, offset, scale=self.offset_scale, v_offset=self.v_offset
        )

    @bound
    def get_unique_primary_pool(self) -> Any:
        return self._pools.primary

    @bound
    def get_block_pool_pointers(self) -> Any:
        return self._pools.pointers()

    # Numbers.

    @property
    def is_variable_window(self) -> bool:
        return False

    @property
    def max_num_blocks(self) -> int:
        return self.native.get_kv_cache_stats().max_num_blocks

    @bound
    def get_kv_cache_stats(self) -> KvCacheStats:
        """A block that is cached and held by nobody is free."""
        stats = self.native.get_kv_cache_stats()
        tier = stats.windows[0].primary
        return KvCacheStats(
            max_num_blocks=stats.max_num_blocks,
            free_num_blocks=tier.free + tier.cached,
            used_num_blocks=stats.max_num_blocks - tier.free - tier.cached,
            tokens_per_block=stats.tokens_per_block,
            reused_blocks=stats.total.blocks_reused,
            missed_blocks=stats.total.blocks_missed,
            cache_hit_rate=stats.cache_hit_rate,
            num_free_blocks_per_window_size={self.window: tier.free + tier.cached},
        )

    @bound
    def get_remaining_blocks_to_completion(self, llm_request: Any, window_size: int, cached_summary: Any = None) -> int:
        """Counts the blocks that the request would take alone, with nothing reused (surface 5)."""
        del cached_summary
        assert window_size == self.window
        total: int = -(-(llm_request.prompt_len + llm_request.max_new_tokens) // self.tokens_per_block)
        known = llm_request.request_id in self._lengths
        return max(0, total - (len(self.native.get_cache_block_ids(llm_request.request_id)[0]) if known else 0))

    @bound
    def release_pools(self) -> None:
        self._pools.close()

    # Calls of C++ to C++.

    @property
    def standin_window(self) -> int:
        return self.window

    def standin_estimate(self, llm_request: Any) -> int:
        """The C++ scheduler asks this of the C++ manager, past anything that Python can see (surface 5).

        That a block which matches in part counts as well is assumed.
        """
        if llm_request.request_id in self._lengths:  # it has its blocks, and a load of a connector that failed
            return 0
        return self.native.analyze_prefix_reuse(self._request(llm_request)).tokens

    # For the tests.

    def standin_slots(self, request_id: int) -> list[int]:
        """The slots of the first beam's blocks."""
        blocks = len(self.native.get_cache_block_ids(request_id)[0])
        offsets = np.empty((1, 1, 2, max(1, blocks)), np.int32)
        self.native.copy_batch_block_offsets(offsets, [request_id], 1, 0)
        return [int(slot) for slot in offsets[0, 0, 0, :blocks]]

    def standin_offsets(self, table: Any, request_id: int) -> None:
        """The rows of one request, past whatever stands in the way of those that ask."""
        beams = len(self.native.get_cache_block_ids(request_id))
        self.native.copy_batch_block_offsets(
            table, [request_id], beams, 0, scale=self.offset_scale, v_offset=self.v_offset
        )

    # Helpers of the methods above.

    def _taking_blocks(self) -> AbstractContextManager[None]:
        """Around whatever may take a free block; pins.py has what upstream does not lock there."""
        return nullcontext()

    def _pin_held(self, request_id: int) -> list[int]:
        beams = self.native.get_cache_block_ids(request_id)
        held = list(dict.fromkeys(block_id for beam in beams for block_id in beam))
        self.native.pin_blocks_by_id(held)
        return held

    def _store_computed(self, llm_request: Any) -> None:
        if llm_request.request_id in self._lengths:
            self.native.store_context_blocks(llm_request.request_id, llm_request.context_current_position)

    def _admitted(self, llm_request: Any, admission: native.Admission) -> None:
        """setPrepopulatedPromptLen comes after allocation, and the connector is asked inside it (surface 4.4).

        The connector sees a copy of C++'s half of the request: no `py_` name, nothing that Python added.
        """
        reused = admission.tokens_reused
        if self._connector is not None:
            reused += self._connector.get_num_new_matched_tokens(era.LlmRequest(llm_request), reused)
        self._lengths[llm_request.request_id] = llm_request.prompt_len
        llm_request.set_prepopulated_prompt_len(reused, self.tokens_per_block)

    def _request(self, llm_request: Any, *, whole: bool = False) -> native.SequenceRequest:
        """Its prompt, or all that there is of it."""
        tokens = llm_request.get_tokens(0)
        return native.SequenceRequest(
            llm_request.request_id,
            tokens if whole else tokens[: llm_request.prompt_len],
            beam_width=llm_request.sampling_config.beam_width,
            lora_id=llm_request.lora_task_id,
            salt=llm_request.cache_salt_id,
        )

    def _run_transfers(self) -> None:
        """Enqueues what the books asked for. `refresh_blocks` orders the next step behind it."""
        batch = self.native.take_transfers()
        self._pools.run((item.kind, item.slot_src, item.slot_dst, item.tokens) for item in batch.items)
        self.native.complete(batch.ticket)
