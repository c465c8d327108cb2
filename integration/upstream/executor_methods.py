"""The executor's methods that its loops need and no excerpt holds: as few as will do."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from integration.upstream.doubles import Double, called
from integration.upstream.parts import HangDetector


class PerfManager:
    """Times nothing."""

    enabled = False

    def create_timing_events(self) -> tuple[None, None, None]:
        return None, None, None

    @contextmanager
    def record_perf_events(self, *_: Any) -> Iterator[Any]:
        yield SimpleNamespace(start_time=0, end_time=0)

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


class WaitingQueue(deque[Any]):
    def remove_by_ids(self, ids: Any) -> None:
        kept = [each for each in self if each.id not in ids]
        self.clear()
        self.extend(kept)

    def pop_request(self) -> Any:
        return self.popleft()


class Transfers:
    """Requests whose blocks are still being saved, by connectors only."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._pinned: dict[int, Any] = {}

    def start_transfer(self, request: Any) -> None:
        pinned = self._manager.store_blocks_for_reuse(request, True)
        self._pinned[request.py_request_id] = pinned

    def end_transfer(self, request: Any) -> bool:
        self._manager.unpin_blocks_by_id(self._pinned.pop(request.py_request_id))
        return True

    def has_any_inflight_requests(self) -> bool:
        return bool(self._pinned)

    def requests_in_transfer(self) -> dict[int, Any]:
        return self._pinned


class Executor:
    """The executor's loops call these on themselves."""

    is_warmup = False
    hang_detector = HangDetector()

    def __init__(self: Any, **given: Any) -> None:
        self.doubled: set[str] = set()
        vars(self).update(given)
        self.is_shutdown, self.iter_counter, self.num_scheduled_requests = False, 0, 0
        self.active_requests: list[Any] = []
        self.waiting_queue = WaitingQueue()
        self.responses: dict[int, Any] = {}
        self.result_wait_queues: dict[int, Any] = {}
        self.response_cv = threading.Condition()
        self.shutdown_event = threading.Event()
        self.inflight_req_ids = self.ids_class()
        self._prefetched_request_ids: set[int] = set()
        self._disagg_timed_out_ctx_cancelled_ids: set[int] = set()
        self._disagg_timed_out_gen_cancelled_ids: set[int] = set()
        self.kv_cache_manager = list(self.resource_manager.resource_managers.values())[-1]
        self.device_id = self.stream_interval = 1
        self.stream_interval = 1
        self.max_num_tokens = self.model_engine.budget
        self.max_input_len = self.max_seq_len
        self.max_num_active_requests = self.max_batch_size
        self.send_handles: list[Any] = []
        self.async_transfer_manager = Transfers(self.kv_cache_manager)
        self._error_budget = SimpleNamespace(consume=lambda _: False, budget=1.0)
        self._pending_transfer_responses: list[Any] = []
        self._pending_response_terminations: list[Any] = []
        self.force_terminate_ctx_for_partial_reuse = False
        self._fatal_error = None
        for name in ("previous_batch", "drafter", "guided_decoder", "kv_cache_transceiver", "speculation_gate"):
            setattr(self, name, None)
        self._disagg_pp_termination_handler = None
        self.perf_manager = PerfManager()
        overlap = not self.disable_overlap_scheduler
        self.event_loop = self._executor_loop_overlap if overlap else self._executor_loop
        self._maybe_init_kv_connector_manager()

    def lenient(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        called.add(f"PyExecutor.{name}")
        return Double()

    def _schedule(self: Any) -> tuple[Any, list[Any], int]:
        output = self.scheduler.schedule_request(self.active_requests, self.inflight_req_ids)
        batch = self.batch_class()
        batch.reset_context_requests(output.context_requests)
        batch.generation_requests, batch.paused_requests = output.generation_requests, output.paused_requests
        batch.recompute_paused_requests = getattr(output, "recompute_paused_requests", ())
        return batch, [], output.num_fitting_requests

    def _fetch_and_activate_new_requests(self: Any) -> list[Any]:
        found: list[Any] = self._fetch_new_requests()
        self.active_requests.extend(found)
        return found

    def _check_benchmark_disagg_gate(self, _batch: Any, can_forward: bool) -> tuple[bool, bool]:
        return can_forward, False

    def _forward_step(self: Any, batch: Any, new_tensors_device: Any = None, *_: Any) -> Any:
        try:
            mine, other = self.execution_stream, torch.cuda.current_stream()
            mine.wait_stream(other)
            with torch.cuda.stream(mine):
                outputs = self.model_engine.forward(batch, self.resource_manager, new_tensors_device)
            other.wait_stream(mine)
            self._kv_connector_wait_for_save()
        except Exception as error:
            self._handle_errors(str(error))
            return None
        return outputs

    def _update_request_states_tp(self: Any, batch: Any) -> None:
        states = self.states
        for request in batch.context_requests:
            if request.state != states.GENERATION_COMPLETE:
                request.py_last_context_chunk = (request.context_current_position, request.context_chunk_size)
                request.move_to_next_context_chunk()
            if request.context_remaining_length == 0:
                request.state = states.GENERATION_IN_PROGRESS

    def _update_generation_requests_that_will_complete_next_iteration(self: Any, requests: list[Any]) -> None:
        for request in requests:
            if request.state != self.states.GENERATION_COMPLETE and request.will_complete_next_iteration():
                request.state = self.states.GENERATION_TO_COMPLETE

    def _set_global_steady_clock_offset(self) -> None:
        pass

    @contextmanager
    def _profiler(self) -> Iterator[Any]:
        yield lambda: None

    @property
    def should_stop_processing(self: Any) -> bool:
        return bool(self.is_shutdown and not self.active_requests)

    def _executor_loop_cleanup(self: Any) -> None:
        self.is_shutdown = True

    def _handle_control_request(self) -> None:
        pass

    def _prepare_and_schedule_batch(self: Any) -> tuple[Any, Any]:
        self._fetch_and_activate_new_requests()
        if self.should_stop_processing:
            return None, None
        self._pad_attention_dp_dummy_request()
        batch, _, _ = self._schedule()
        self.num_scheduled_requests = batch.batch_size
        return batch, None

    def _fetch_new_requests(self: Any, *_: Any) -> list[Any]:
        found = []
        for item in self.executor_request_queue.get_from_request_queue(None):
            if item.is_shutdown_request:
                self.is_shutdown = True
            elif item.is_canceled_request:
                self.canceled_req_ids.append(item.id)
            else:
                found.append(item.request)
        return found

    def _can_queue(self, batch: Any, *_: Any) -> tuple[bool, bool]:
        return batch.batch_size > 0, batch.batch_size > 0

    def _pad_attention_dp_dummy_request(self) -> None:
        pass

    def _kv_connector_wait_for_save(self: Any) -> None:
        if self.kv_connector_manager is not None:
            self.kv_connector_manager.worker.wait_for_save(torch.cuda.current_stream())
