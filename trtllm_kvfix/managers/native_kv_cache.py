"""The object that upstream's V1 `KVCacheManager` calls `.impl`, backed by our block manager.

Every name here is one that upstream's Python calls, with upstream's arguments. This class decides nothing: keywords.py
reads the constructor's arguments, books.py keeps the books and moves bytes as they say, memory.py holds them.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from trtllm_kvfix import settings
from trtllm_kvfix.canary.canary import Canary
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers import reports, tensors
from trtllm_kvfix.managers.between_ranks import Clock, RankComparison, next_serial
from trtllm_kvfix.managers.books import BookedCopies, Books
from trtllm_kvfix.managers.keywords import layout_of
from trtllm_kvfix.managers.layout import CacheLayout
from trtllm_kvfix.managers.memory import Memory, layer_table
from trtllm_kvfix.managers.prompts import prompt_of, read_prompt
from trtllm_kvfix.managers.questions import Prefix, Questions
from trtllm_kvfix.managers.reports import FIRST_HALF, KVCacheEvent
from trtllm_kvfix.managers.watched import watched
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.metrics.counting import refresh
from trtllm_kvfix.native import (
    BlockManager,
    BlockManagerConfig,
    RequestBooks,
    SequenceRequest,
    TransferItem,
    block_hashes,
)
from trtllm_kvfix.ranks import Ranks, agreed_seed, ranks_here
from trtllm_kvfix.staging import current_place

PRIORITY_OF_NOBODY = 35  # upstream's answer for a block that it does not find


class PrefixReuseSummary(NamedTuple):
    """The whole cached blocks of a prompt, and its tokens up to the end of the first block that is not cached."""

    reusable_blocks_allocated: int  # which some sequence holds
    reusable_blocks_all: int
    first_new_block: tuple[int, ...] | None


Method = TypeVar("Method", bound=Callable[..., Any])


def locked(method: Method) -> Method:
    """The extension takes calls from any thread; what lies between its calls, such as copies, needs a lock of its own.

    Methods that run in every iteration take the lock themselves, without a wrapper around them.
    """

    @wraps(method)
    def call(self: "NativeKvCache", *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast("Method", call)


def answering(method: Method) -> Method:
    """For a call that needs an answer: noted requests are admitted first."""

    @wraps(method)
    def call(self: "NativeKvCache", *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._settle()
            return method(self, *args, **kwargs)

    return cast("Method", call)


class NativeKvCache:
    cross_kv = False

    def __init__(self, **given: Any) -> None:
        """Raises NotServed, which names the keyword."""
        self.layout = layout_of(given)
        self._settings = settings.load()
        self._host_admission = self._settings.native_host_admission
        if self._host_admission != "all" and not any(window.blocks_host for window in self.layout.windows):
            raise NotServed(
                f"kvfix.native_host_admission: {self._host_admission} is about a host tier, and there is none: set "
                "kv_cache_config.host_cache_size, or leave the setting out"
            )
        self._make(self.layout, ranks_here(self._settings.agreement_timeout_s))

    def _make(self, layout: CacheLayout, ranks: Ranks) -> None:
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
                host_admission=self._host_admission,
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
        self._requests = RequestBooks(self.core, chunk_tokens=layout.chunk, tokens_ahead=layout.ahead)
        # Upstream calls it for each request in each iteration: without a frame of Python in between.
        self.add_token = self._requests.add_token  # type: ignore[method-assign]
        self._lock = threading.RLock()
        self._has_pools = False
        self._declined = 0  # blocks, as far as they have been counted
        refresh(self)

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
        self._copies = BookedCopies(self.core, self._requests, device, self._memory, self.layout.stream)
        serial = next_serial()
        self._books = Books(self.core, self._requests, self._copies, Clock(self.core, serial), self.layout)
        self._settle = self._books.settle
        self._watch = watched(device, self.layout, self._books, self._memory.pointers(), self._settings)
        if self._watch is not None:
            self._books.watch = self._watch
            self._copies.listeners.append(self._watch.moved)
        self._questions = Questions(self._books, self.layout)
        self._comparison = RankComparison(self.core, serial)
        if self.layout.events is not None:
            for window in self.layout.windows:
                self.layout.events.created(window.size, [window.blocks_primary, window.blocks_host])
        self._has_pools = True

    @locked
    def watch_copies(self, on_submit: Callable[[Sequence[TransferItem]], None]) -> None:
        """Call this, too, with the copies between slots, whenever some are submitted. It may raise nothing."""
        self._copies.listeners.append(on_submit)

    @property
    def canary(self) -> Canary | None:
        """The one that `kvfix.canary` asks for."""
        return None if self._watch is None else self._watch.canary

    @locked
    def release_pools(self) -> None:
        """Upstream may ask twice. Each part ends, the last one first, also where another raises."""
        if self._has_pools:
            self._has_pools = False
            with ExitStack() as stack:
                stack.callback(self._memory.release)
                if self._watch is not None:
                    stack.callback(self._watch.close)
                stack.callback(self._copies.close)

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
        if beam_width != 1:
            raise RuntimeError(f"request {request_id} has {beam_width} beams; one is served")
        if self._books.add(request_id, input_length, llm_request):
            with self._lock:
                self._settle()  # upstream expects the refusal of a dummy from this very call

    def add_sequence_batch(self, request_infos: list[tuple[int, int, int]], llm_requests: list[Any]) -> None:
        for info, request in zip(request_infos, llm_requests, strict=True):
            self.add_sequence(*info, request)

    def add_token(self, request_id: int, detach_swa_front_blocks: bool = True) -> None:
        """Note one more position. If the request is unknown, the call that settles the notes raises and names it."""
        self._requests.add_token(request_id, detach_swa_front_blocks)

    def refresh_blocks(self) -> None:
        with self._lock:
            self._settle()
            self.core.refresh_blocks()

    def store_context_blocks(self, llm_request: Any) -> None:
        self._requests.report(llm_request.request_id, llm_request.context_current_position)

    def remove_sequence(self, request_id: int, llm_request: Any, pin_on_release: bool) -> int | None:
        """One number for all that is pinned on release, also where `store_blocks_for_reuse` lists them."""
        with self._lock:
            pinned = self._pinned(request_id) if pin_on_release else []
            self._books.remove(request_id, llm_request)
            return self._books.pins.chain(pinned)

    @answering
    def rewind_kv_cache(self, request_id: int, rewind_len: int) -> None:
        self._books.rewind(request_id, rewind_len)

    def reset_reuse_state(self) -> None:
        """The weights may have changed, so what live requests have computed is no prefix of anything either.

        The core resets in steps, so that others come between them, and no lock may be held around it.
        """
        with self._lock:
            self._settle()
            self._requests.keep_all_private()
        self.core.reset_reuse_state()

    # ---- slots of a sequence: upstream indexes the pools with them ----

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
        with self._lock:
            self._settle()
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
        return self.core.get_token_count(request_id)

    # ---- blocks that are held beyond their request, by slots ----

    @answering
    def store_blocks_for_reuse(self, request_id: int, llm_request: Any, pin_blocks: bool) -> Any:
        self._requests.store(request_id, llm_request.get_num_tokens(0))
        slots = self._pinned(request_id) if pin_blocks else []
        return slots if self.layout.pins_by_list else self._books.pins.chain(slots)

    @locked
    def pin_blocks(self, request_id: int) -> None:
        self._refuse_windows()
        self._books.pin(request_id)

    @locked
    def unpin_blocks_by_id(self, block_ids: int | Sequence[int]) -> None:
        if isinstance(block_ids, int):
            self._books.pins.unpin_chain(block_ids)
        else:
            self._books.pins.unpin(block_ids)

    def _pinned(self, request_id: int) -> list[int]:
        self._refuse_windows()
        return self._books.pin(request_id) if self._requests.knows(request_id) else []

    def _refuse_windows(self) -> None:
        if self.layout.slides:
            raise NotServed("blocks of several or sliding windows are not pinned: their slots do not name them")

    # ---- names of blocks: connectors ask for hashes and priorities, routers for prefixes ----
    # Numbers of blocks are slots, as everywhere here. Hashes are those of the events: the first half of ours.

    @answering
    def commit_and_get_block_hashes_for_request(self, llm_request: Any, window_size: int) -> list[int]:
        """The hashes of all blocks that its tokens fill, those of its answer too, whether they are stored or not."""
        del window_size
        request_id = llm_request.request_id
        full = llm_request.get_num_tokens(0) // self.tokens_per_block
        if len(self._books.names.get(request_id, ())) != full:
            names = self.core.commit_and_get_block_hashes(request_id)
            if full > len(names) and not self._requests.is_private(request_id):  # the core does not know the answer
                names = block_hashes(read_prompt(llm_request).sequence, self.core.config)
            self._books.names[request_id] = [each & FIRST_HALF for each in names]
        return list(self._books.names.get(request_id, ()))

    @answering
    def get_priority_by_block_id(self, block_id: int, window_size: int) -> int:
        block = self._books.slots.block_in(block_id, self.layout.window_of(window_size))
        return PRIORITY_OF_NOBODY if block is None else self.core.get_priority_by_block_id(block)

    def get_memory_pool_block_indices(self, block_ids: Sequence[int], window_size: int) -> list[int]:
        del window_size
        return list(block_ids)

    @answering
    def get_num_front_blocks_removed(self, request_id: int, window_size: int) -> int:
        return self.core.get_num_front_blocks_removed(request_id, self.layout.window_of(window_size).name)

    @locked
    def analyze_prefix_reuse(self, unique_tokens: Any, llm_request: Any) -> PrefixReuseSummary:
        del unique_tokens  # the request has them
        prefix = self._questions.prefix_of(prompt_of(llm_request))
        return PrefixReuseSummary(self._questions.held_blocks(prefix), prefix.blocks, self._first_new(prefix))

    @locked
    def find_new_context_block(self, unique_tokens: Any, llm_request: Any) -> tuple[int, ...] | None:
        """The first block that is not cached, for older builds: a value that can be compared and counted."""
        del unique_tokens
        return self._first_new(self._questions.prefix_of(prompt_of(llm_request)))

    def _first_new(self, prefix: Prefix) -> tuple[int, ...] | None:
        if prefix.first_new is None:
            return None
        return tuple(prefix.prompt.sequence.tokens[: (prefix.first_new + 1) * self.tokens_per_block])

    @answering
    def truncate_blocks(self, target_tokens: Sequence[int], num_tokens_to_keep: int) -> None:
        """Truncates a conversation without LoRA and salt: upstream's call names neither."""
        if target_tokens:
            conversation = SequenceRequest(0, target_tokens)
            self.core.truncate_blocks(conversation, min(num_tokens_to_keep, len(target_tokens)))

    # ---- events ----

    def flush_iteration_events(self) -> None:
        """Make the events since the last call readable. Ranks that show no events drop them."""
        events = self.core.get_latest_events()
        if self.layout.events is not None:
            self.layout.events.add(events, self.layout.windows[0].size)

    def get_latest_events(self, timeout_ms: float | None = None) -> list[KVCacheEvent]:
        events = self.layout.events
        return [] if events is None else events.get_latest_events(timeout_ms)

    # ---- numbers: asking for them admits no request, so it does not matter which rank asks, or when ----

    @locked
    def get_kv_cache_stats(self) -> reports.CacheStats:
        sizes = [window.size for window in self.layout.windows]
        return reports.cache_stats(self.core.get_kv_cache_stats(), sizes, self._memory.device_bytes)

    @locked
    def get_iteration_stats(self) -> dict[int, reports.IterationStats]:
        """Events are counted over all windows, and shown with the largest one."""
        stats = self.core.get_kv_cache_stats()
        *smaller, largest = self.layout.windows
        slot_bytes = sum(pool.slot_bytes for pool in self.layout.pools) if not smaller else 0  # they differ
        found = {each.size: reports.iteration_stats(stats, each.index, None, 0) for each in smaller}
        return found | {largest.size: reports.iteration_stats(stats, largest.index, stats.iteration, slot_bytes)}

    def count(self) -> None:
        """Add to the counters what happened since the last call."""
        declined = self.core.get_kv_cache_stats().total.blocks_declined
        counters.native_declined_blocks.add(declined - self._declined)
        self._declined = declined

    # ---- questions of capacity schedulers ----

    def start_scheduling(self) -> None:
        with self._lock:
            self._settle()
            self._copies.end()

    @locked
    def get_remaining_blocks_to_completion(self, req: Any, window_size: int, cached_summary: Any = None) -> int:
        del cached_summary
        return self._questions.to_completion(req)[self.layout.window_of(window_size).index]

    @locked
    def get_remaining_blocks_to_completion_batch(self, requests: list[Any], window_size: int) -> list[int]:
        index = self.layout.window_of(window_size).index
        return [self._questions.to_completion(each)[index] for each in requests]

    @locked
    def get_needed_blocks_one_step(
        self, req: Any, two_steps_look_ahead: bool, window_size: int, cached_summary: Any = None
    ) -> int:
        del cached_summary
        return self._questions.one_step(req, self.layout.window_of(window_size), two_steps=two_steps_look_ahead)

    @property
    def questions(self) -> Questions:
        """The answers that our own capacity scheduler needs."""
        return self._questions


def _windows_of(layout: CacheLayout) -> dict[str, Any]:
    """For the core's config."""
    if not layout.slides:
        (window,) = layout.windows
        return {"blocks_primary": window.blocks_primary, "blocks_host": window.blocks_host}
    return {
        "window_sizes": [window.size for window in layout.windows],
        "blocks_primary": {window.size: window.blocks_primary for window in layout.windows},
        "blocks_host": {window.size: window.blocks_host for window in layout.windows},
    }
