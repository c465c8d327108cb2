"""Methods of the newest V2 manager, of its requests and of the executor that drives it, which no excerpt holds. Ours,
and small.

The steps with a connector were written after upstream's tests, and the executor of era O, which is newer, does them in
this order: loads are marked as dispatched before the worker may write, completions are applied before scheduling, and a
request whose load is pending is cancelled when the load is over.
"""

import enum
import hashlib
import os
from collections import namedtuple
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from integration.upstream.fallbacks import strict
from integration.upstream.v2_pages import LifeCycle
from integration.upstream.v2_runtime import BAD_PAGE

EXECUTOR = "tensorrt_llm._torch.pyexecutor"
MANAGER = f"{EXECUTOR}.kv_cache.kv_cache_manager_v2"
SCHEDULER = f"{EXECUTOR}.scheduler.scheduler_v2"
CONNECTOR = f"{EXECUTOR}.connectors.kv_cache_connector"


class BlockReusePolicy(enum.Enum):
    ALL_REUSABLE = 0
    PER_REQUEST = 1


def settle_context_cursor(request: Any, reused: int, tokens_per_block: int) -> None:
    """Reuse of its own, or what a connector has served, is where the request starts."""
    position = max(reused, request.py_connector_served_position)
    if position:
        request.context_chunk_size = request.prompt_len - request.context_current_position
        request.set_prepopulated_prompt_len(position, tokens_per_block)


def rewind_context_after_cache_drop(request: Any, tokens_per_block: int) -> None:
    request.context_current_position = 0
    request.set_prepopulated_prompt_len(0, tokens_per_block)
    request.context_chunk_size = request.prompt_len
    request.py_ctx_pre_resize_cap = None


class Completions:
    """Completions of prefix loads on one rank, so no other rank has to agree."""

    def __init__(self, _comm: Any) -> None:
        self._done: list[int] = []

    def track(self, reservation_id: int) -> None:
        pass

    def forget(self, reservation_id: int) -> None:
        self._done = [each for each in self._done if each != reservation_id]

    def report(self, finished: set[int]) -> None:
        self._done += sorted(finished)

    def poll(self) -> None:
        pass

    def take_completed(self) -> list[int]:
        found, self._done = self._done, []
        return found

    def close(self) -> None:
        pass


FIELDS = "encoder_requests context_requests generation_requests paused_requests fitting_disagg_gen_init_requests"
OUTPUT = f"{FIELDS} num_fitting_requests recompute_paused_requests"  # the last is the newest scheduler's

# Names that the excerpts import from files that are not there, or use below a head that no excerpt holds.
NAMES: dict[str, dict[str, Any]] = {
    MANAGER: {
        "AttnLifeCycle": LifeCycle,
        "BAD_PAGE_INDEX": BAD_PAGE,
        "BlockReusePolicy": BlockReusePolicy,
        "DEFAULT_BEAM_INDEX": 0,
        "ReuseScope": lambda **scope: tuple(scope.values()),
        "_cpp_introspection": None,
        "_settle_context_cursor": settle_context_cursor,
        "_update_kv_cache_draft_token_location": lambda *_: None,
        "get_draft_token_length": lambda request: len(request.py_draft_tokens),
        "hashlib": hashlib,
        "os": os,
        "rewind_context_after_cache_drop": rewind_context_after_cache_drop,
    },
    SCHEDULER: {
        "SchedulerOutput": namedtuple("SchedulerOutput", OUTPUT, defaults=((),)),
        "_get_lora_task_id": lambda request: request.lora_task_id or 0,
        "drop_decoder_context_requests_waiting_for_encoder_output": lambda requests: requests,
        "rewind_context_after_cache_drop": rewind_context_after_cache_drop,
    },
    CONNECTOR: {"PrefixLoadCompletionTracker": Completions},
}


class Manager:
    """The V2 manager's own methods and the loops call these on it."""

    def __init__(self: Any, shape: Any, connector: Any, stream: Any, mapper: Any, runtime: Any) -> None:
        windows = [None if window >= shape.max_seq_len else window for window in shape.windows]
        self.impl, self.kv_cache_map = runtime, runtime.caches
        self.kv_connector_manager, self._stream = connector, stream
        self.tokens_per_block, self.max_seq_len = shape.tokens_per_block, shape.max_seq_len
        self.max_batch_size, self.max_beam_width, self.kv_factor = shape.max_batch_size, 1, 2
        self.num_pools, self.max_attention_window_vec = len(windows), list(shape.windows)
        self.max_blocks_per_seq = -(-shape.max_seq_len // shape.tokens_per_block // 4) * 4
        rows = shape.max_batch_size + 1
        self.index_mapper = mapper(rows, 1)
        table = (self.num_pools, rows, 2, self.max_blocks_per_seq)
        self.host_kv_cache_block_offsets = torch.full(table, BAD_PAGE, dtype=torch.int32, pin_memory=True)
        self.index_scales = torch.full((self.num_pools,), self.kv_factor, dtype=torch.int32, pin_memory=True)
        self.kv_offset = torch.ones(self.num_pools, dtype=torch.int32, pin_memory=True)
        # For the filter of equal launches: what the table means, and room for a batch's rows.
        self._page_index_key = ((self.kv_factor,) * self.num_pools, (1,) * self.num_pools)
        self._page_index_payload = torch.empty(self.num_pools, rows, self.max_blocks_per_seq, dtype=torch.int32)
        self.kv_cache_pool_pointers = torch.zeros(self.num_pools, 2, dtype=torch.int64)
        self.kv_cache_pool_mapping = torch.tensor([[pool, 0] for pool in range(self.num_pools)], dtype=torch.int32)
        layers = [SimpleNamespace(window_size=window) for window in windows]
        self.kv_cache_manager_py_config = SimpleNamespace(layers=layers)
        self.enable_block_reuse, self.block_reuse_policy = shape.reuse, BlockReusePolicy.ALL_REUSABLE
        self._can_publish_block_reuse = True
        self.has_cache_tier_below_gpu = self.can_evict = bool(shape.host_blocks)
        self._switch_off()

    def _switch_off(self: Any) -> None:
        """Drafts, estimation, compression, statistics, context parallelism."""
        self.is_draft = self.is_estimating_kv_cache = self.enable_stats = False
        self.enable_joint_kv_cache_reuse = False
        self._has_cp_helix = self._use_per_layer_page_tables = self.kv_compression_manages_history = False
        self.num_extra_kv_tokens = self._standalone_draft_reserve = self.reuse_match_backoff = 0
        self._kv_reserve_draft_tokens = 0
        self.draft_layer_ids: list[int] = []
        self.draft_window_size = self.conversation_manager = self._connector_life_cycle_by_group = None
        self._allocated_draft_lens: dict[int, int] = {}
        self._fresh_pages_filled: dict[int, Any] = {}
        self._disagg_receive_ready: dict[int, Any] = {}
        self._request_stats_enabled_ids: set[int] = set()
        self._early_freed_index_requests: set[int] = set()

    lenient = strict

    def preempt_request(self: Any, request: Any) -> None:
        self.free_resources(request)

    def is_request_active(self: Any, request_id: int) -> bool:
        return request_id in self.kv_cache_map and self.kv_cache_map[request_id].is_active

    def publish_connector_scheduler_output(self: Any, batch: Any) -> None:
        """Sends the report as the executor's own era does."""
        self.report_batch_to_connector(batch)

    def get_cache_indices(self: Any, request: Any) -> list[int]:
        if self.num_pools > 1:
            raise ValueError("pages of several layer groups cannot share one list")
        return list(self.kv_cache_map[request.py_request_id].get_aggregated_page_indices(0))

    def store_blocks_for_reuse(self, *_: Any) -> None:
        return None

    unpin_blocks_by_id = store_blocks_for_reuse

    def _generation_draft_slots(self, request: Any) -> int:
        return len(request.py_draft_tokens)

    def _fill_fresh_kv_pages(self, *_: Any) -> None:
        pass

    _log_window_crossing = _fill_fresh_kv_pages


class NotGenerationOnly:
    """A property to the newest manager, a method to the executor."""

    def __bool__(self) -> bool:
        return False

    def __call__(self) -> bool:
        return False


def request_class(base: Any) -> Any:
    class LlmRequest(base):  # type: ignore[misc]
        is_generation_only_request = NotGenerationOnly()
        py_connector_allocation_reported = False
        py_connector_served_position = 0
        py_ctx_pre_resize_cap = None

        @property
        def state_value(self) -> int:
            return int(self.state.value)

        @property
        def is_generation_to_complete_state(self) -> bool:
            return bool(self.state.name == "GENERATION_TO_COMPLETE")

        def reset_for_recompute(self: Any, max_input_len: int) -> None:
            """The tokens that it has generated join its prompt."""
            self.py_max_new_tokens -= self.get_num_tokens(0) - self.py_prompt_len
            self.pause(min(max_input_len, self.get_num_tokens(0)))
            self.py_prompt_len, self.py_forwarded = self.prompt_len, 0
            self.py_batch_idx = None

    return LlmRequest


class Steps:
    """The steps of the newest executor's loop that the excerpts lack. They are put on the instance."""

    def _revert_gen_alloc(self: Any, batch: Any) -> None:
        for request in batch.generation_requests:
            self.kv_cache_manager.revert_allocate_generation(request)

    def _prepare_and_schedule_batch(self: Any) -> tuple[Any, Any]:
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.finish_prefix_loads(self.kv_connector_manager.take_finished_prefix_loads())
        batch, statistics = type(self)._prepare_and_schedule_batch(self)
        if batch is not None:
            kept = {request.request_id for request in batch.context_requests}
            self.kv_cache_manager.release_unused_connector_reservations(kept)
        return batch, statistics

    def _kv_connector_start_batch(self: Any, batch: Any) -> None:
        connector = self.kv_connector_manager
        if connector is None:
            return
        start = connector.worker.start_load_kv

        def start_load_kv(stream: Any) -> None:
            connector.mark_prefix_loads_dispatched()
            start(stream)

        with mock.patch.object(connector.worker, "start_load_kv", start_load_kv):
            type(self)._kv_connector_start_batch(self, batch)

    def _kv_connector_terminate_requests(self: Any) -> None:
        type(self)._kv_connector_terminate_requests(self)
        if self.kv_connector_manager is not None:
            ended = self.kv_connector_manager.take_finished_load_terminations()
            self.canceled_req_ids += [each.py_request_id for each in ended]
            if ended:
                self._handle_canceled_requests()
                self._handle_responses()

    def _try_cancel_request(self: Any, request: Any) -> bool:
        connector = self.kv_connector_manager
        if connector is not None and connector.defer_load_termination(request):
            return False
        return bool(type(self)._try_cancel_request(self, request))
