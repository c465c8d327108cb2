"""The object that upstream's V1 `KVCacheManager` calls `.impl`, backed by our block manager.

Every name here is one that upstream's Python calls, with upstream's arguments. This class decides nothing: keywords.py
reads the constructor's arguments, books.py keeps the books, memory.py holds the bytes, copies.py moves them.
"""

import threading
from typing import Any

import numpy as np

from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers import tensors
from trtllm_kvfix.managers.asked import Asked
from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.clock import Clock
from trtllm_kvfix.managers.comparison import Comparison, next_serial
from trtllm_kvfix.managers.copies import Copies
from trtllm_kvfix.managers.held import Held
from trtllm_kvfix.managers.keywords import layout_of
from trtllm_kvfix.managers.layout import Layout
from trtllm_kvfix.managers.locks import answering, locked
from trtllm_kvfix.managers.memory import Memory, layer_table
from trtllm_kvfix.managers.named import Named
from trtllm_kvfix.managers.questions import Questions
from trtllm_kvfix.native import BlockManager, BlockManagerConfig
from trtllm_kvfix.ranks import Ranks, agreed_seed, ranks_here
from trtllm_kvfix.staging import current_place


class NativeKvCache(Asked, Held, Named):
    cross_kv = False

    def __init__(self, **given: Any) -> None:
        """Raises NotServed, which names the keyword."""
        self.layout = layout_of(given)
        self._make(self.layout, ranks_here())

    def _make(self, layout: Layout, ranks: Ranks) -> None:
        """Called on every rank. Only one rank shows events, but all keep books with events."""
        events_max = max(ranks.gather(layout.events.entries_max if layout.events else 0))
        self.core = BlockManager(
            BlockManagerConfig(
                tokens_per_block=layout.tokens_per_block,
                **_windows_of(layout),
                block_reuse=layout.reuse,
                partial_reuse=layout.partial_reuse,
                copy_on_partial_reuse=layout.copy_on_partial_reuse,
                offload_priority_min=layout.offload_priority_min,
                events_max=events_max,
                seed=agreed_seed(ranks),
            )
        )
        self.tokens_per_block = layout.tokens_per_block
        self.enable_block_reuse = layout.reuse
        self.num_pools = len(layout.pools)
        self.max_num_blocks = sum(window.blocks_primary for window in layout.windows)
        self.max_blocks_per_seq = layout.blocks_per_sequence
        self.max_attention_window_vec = list(layout.window_vector)
        self.is_variable_window = len(layout.windows) > 1
        self._lock = threading.RLock()
        self._has_pools = False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"kvfix.manager: native does not serve {name}; docs/native-manager.md lists what it serves"
        )

    # ---- memory ----

    @locked
    def allocate_pools(self, use_uvm: bool) -> None:
        if use_uvm:
            raise NotServed("allocate_pools: unified memory is not served")
        device = current_place().device
        self._memory = Memory(device, self.layout)
        self._copies = Copies(self.core, device, self._memory, self.layout.stream)
        serial = next_serial()
        self._books = Books(self.core, self._copies, Clock(self.core, serial), self.layout)
        self._questions = Questions(self._books, self.layout)
        self._comparison = Comparison(self.core, serial)
        if self.layout.events is not None:
            for window in self.layout.windows:
                self.layout.events.created(window.size, [window.blocks_primary, window.blocks_host])
        self._has_pools = True

    @locked
    def release_pools(self) -> None:
        """Upstream may ask twice."""
        if self._has_pools:
            self._has_pools = False
            self._copies.close()
            self._memory.release()

    def get_block_pool_pointers(self) -> Any:
        return self._memory.pointers()

    def get_block_scale_pool_pointers(self) -> Any:
        return tensors.on_cpu(np.zeros((0, 2), np.int64))

    def get_layer_to_pool_mapping(self) -> Any:
        return layer_table(self.layout)

    def get_primary_pool_data(self, layer_idx: int) -> Any:
        return self._memory.layer(layer_idx)

    def get_unique_primary_pool(self) -> Any:
        if self.num_pools != 1:
            raise RuntimeError(f"one pool is needed, but there are {self.num_pools} pools")
        return self._memory.pool(0)

    # ---- the life of a request ----

    def sync_transfer_manager_with_buffer_manager(self) -> None:
        """Called at the head of every `prepare_resources`: the fixed point at which copies end."""
        with self._lock:
            self._books.begin_iteration()
            self._comparison.step()

    def add_sequence(self, request_id: int, input_length: int, beam_width: int, llm_request: Any) -> None:
        if self._books.add(request_id, input_length, beam_width, llm_request):
            with self._lock:
                self._books.settle()

    def add_sequence_batch(self, request_infos: list[tuple[int, int, int]], llm_requests: list[Any]) -> None:
        for info, request in zip(request_infos, llm_requests, strict=True):
            self.add_sequence(*info, request)

    def add_token(self, request_id: int, detach_swa_front_blocks: bool = True) -> None:
        """Upstream calls this for each request in each iteration, so it only takes a note, which needs no lock.

        If the request is unknown, the call that settles the notes raises and names it.
        """
        del detach_swa_front_blocks  # there is no window to leave
        books = self._books
        books.growing.append(request_id)
        if request_id in books.dummies:
            with self._lock:
                books.settle()  # upstream expects the refusal of a dummy from this very call

    def refresh_blocks(self) -> None:
        with self._lock:
            self._books.settle()
            self.core.refresh_blocks()

    @locked
    def store_context_blocks(self, llm_request: Any) -> None:
        self._books.report(llm_request)

    @locked
    def remove_sequence(self, request_id: int, llm_request: Any, pin_on_release: bool) -> int | None:
        """One number for all that is pinned on release, also where `store_blocks_for_reuse` lists them."""
        pinned = self._pinned(request_id) if pin_on_release else []
        self._books.remove(request_id, llm_request)
        return self._books.pins.chain(pinned)

    @locked
    def rewind_kv_cache(self, request_id: int, rewind_len: int) -> None:
        self._books.rewind(request_id, rewind_len)

    @answering
    def reset_reuse_state(self) -> None:
        self._books.forget_prefixes()

    # ---- slots of a sequence: upstream indexes the pools with them ----

    @answering
    def copy_batch_block_offsets(
        self,
        output: Any,
        request_ids: list[int],
        beam_width: int,
        offset: int,
        use_swa_cyclic_slots: bool = True,
        use_swa_context_slots: bool = False,
    ) -> None:
        del use_swa_cyclic_slots, use_swa_context_slots
        self._books.slots.write_offsets(output, request_ids, beam_width, offset)

    @answering
    def get_batch_cache_block_ids(self, request_ids: list[int], window_size: int) -> list[list[list[int]]]:
        return [[slots] for slots in self._books.slots.of(request_ids, self.layout.window_of(window_size))]

    def get_cache_block_ids(self, request_id: int, window_size: int) -> list[list[int]]:
        return self.get_batch_cache_block_ids([request_id], window_size)[0]

    def get_last_block_id(self, request_id: int) -> int:
        return self.get_cache_block_ids(request_id, self.layout.windows[0].size)[0][-1]

    @answering
    def get_token_count(self, request_id: int) -> int:
        return self._books.live[request_id].length


def _windows_of(layout: Layout) -> dict[str, Any]:
    """For the core's config."""
    if not layout.slides:
        (window,) = layout.windows
        return {"blocks_primary": window.blocks_primary, "blocks_host": window.blocks_host}
    return {
        "window_sizes": [window.size for window in layout.windows],
        "blocks_primary": {window.size: window.blocks_primary for window in layout.windows},
        "blocks_host": {window.size: window.blocks_host for window in layout.windows},
    }
