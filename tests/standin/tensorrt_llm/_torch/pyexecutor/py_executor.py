"""The executor's loops (surface 10)."""

import threading
import traceback
from dataclasses import dataclass
from typing import Any

from ..._standin import pauses
from ..._standin.connector_steps import ConnectorSteps
from ..._standin.contents import Contents
from ..._standin.front_desk import FrontDesk
from ..._standin.saving import AsyncTransferManager
from ..._standin.tensors import tensors
from ..._standin.variant import MANGLED, before, since
from ..._utils import hard_kill_on_rank_crash, mpi_world_size
from ...logger import logger
from .llm_request import LlmRequest, LlmRequestState
from .resource_manager import ResourceManagerType
from .scheduler import ScheduledRequests


@dataclass
class BatchState:
    sample_state: Any

    @property
    def scheduled_requests(self) -> Any:
        return self.sample_state.scheduled_requests


class PyExecutor(ConnectorSteps, FrontDesk):
    def __init__(
        self,
        resource_manager: Any,
        scheduler: Any,
        model_engine: Any,
        sampler: Any,
        *,
        draft_model_engine: Any = None,
        disable_overlap_scheduler: bool = False,
        is_of_pipeline: bool = False,
        kv_connector_manager: Any = None,
        execution_stream: Any = None,
    ) -> None:
        super().__init__()
        self.resource_manager = resource_manager
        self.scheduler = scheduler
        self.model_engine = model_engine
        self.draft_model_engine = draft_model_engine
        self.max_input_len = 1 << 30
        self.sampler = sampler
        self.kv_connector_manager = kv_connector_manager
        self.kv_cache_manager = resource_manager.get_resource_manager(ResourceManagerType.KV_CACHE_MANAGER)
        if since("B"):
            self.execution_stream = tensors().stream() if execution_stream is None else execution_stream
        manager = self.kv_cache_manager
        stores = getattr(manager, "enable_block_reuse", False) and not getattr(manager, "is_vswa", True)  # not in V2
        self.async_transfer_manager = AsyncTransferManager(manager, should_store_blocks=stores)
        self.contents: Contents | None = None
        if kv_connector_manager is not None:
            self.contents = model_engine.contents = self._connect(kv_connector_manager, model_engine.model)
        self.previous_batch: BatchState | None = None
        self.event_loop_error: BaseException | None = None
        self.inflight_req_ids: set[int] = set()
        loop = self._executor_loop if disable_overlap_scheduler else self._executor_loop_overlap
        if since("C") and is_of_pipeline:
            loop = self._executor_loop_pp
        self.event_loop = loop
        self.worker_thread: threading.Thread | None = None
        self.points = pauses.newest()  # of this server

    # From other threads.

    def start_worker(self) -> None:
        self.worker_thread = threading.Thread(target=self._run_worker, name="executor", daemon=True)
        self.worker_thread.start()

    if since("B"):

        def reset_prefix_cache(self) -> None:
            self.kv_cache_manager.reset_reuse_state()

    def shutdown(self) -> None:
        self._no_more_requests()
        if self.worker_thread is not None:
            self.worker_thread.join()
        if self.kv_connector_manager is not None and since("F"):
            self.kv_connector_manager.shutdown()
        for manager in self.resource_manager.resource_managers.values():
            manager.shutdown()

    # The loop's thread.

    def _run_worker(self) -> None:
        """The thread. Upstream's ends with the exception; here a test asks for it."""
        try:
            with pauses.reaching(self.points), tensors().on(tensors().stream()):
                self._event_loop_wrapper()
        except BaseException as error:
            self.event_loop_error = error
            self.event_loop_traceback = traceback.format_exc()

    def _event_loop_wrapper(self) -> None:
        """Logs what ended the loop, and raises it. Since D a rank that has peers is killed before it raises: they would
        wait for it for ever."""
        crashed = False
        try:
            self.event_loop()
        except Exception as error:
            crashed = True
            logger.error(f"Error in event loop: {error}")
            raise error
        finally:
            if crashed and since("D"):
                hard_kill_on_rank_crash(mpi_world_size())

    def _executor_loop_overlap(self) -> None:
        while True:
            if since("D"):
                self._wait_for_model_engine_input_copy()
            pauses.reach(pauses.CALL_SCHEDULE)
            scheduled_batch, _ = self._prepare_and_schedule_batch()
            if scheduled_batch is None:
                break
            can_queue = self._can_queue(scheduled_batch)
            self._terminate_requests(scheduled_batch.paused_requests)
            batch_outputs = None
            can_queue = self._prepare(scheduled_batch, can_queue)
            if can_queue:
                batch_outputs = self._forward_step(scheduled_batch)
            if self.previous_batch is not None:
                self._update_requests(self.previous_batch.sample_state)
                if since("B"):
                    self._send_kv_async(self.previous_batch.scheduled_requests.all_requests())
            self._pause_requests(scheduled_batch.paused_requests)
            sample_state = None
            if can_queue:
                sample_state = self._sample_async(scheduled_batch, batch_outputs)
                assert sample_state is not None, "Sampling failed"
                if since("D"):
                    self._wait_for_model_engine_input_copy()
                self._update_request_states(scheduled_batch)
                if since("D"):
                    self._update_context_resources(scheduled_batch)
            if self.previous_batch is not None:
                if since("D"):
                    self._wait_for_model_engine_input_copy()
                self._process_previous_batch()
            self._kv_connector_terminate_requests()
            self.previous_batch = None if sample_state is None else BatchState(sample_state)

    def _executor_loop(self) -> None:
        """Without overlap the host waits for each step's sample before it touches a buffer again."""
        while True:
            pauses.reach(pauses.CALL_SCHEDULE)
            scheduled_batch, _ = self._prepare_and_schedule_batch()
            if scheduled_batch is None:
                break
            self._terminate_requests(scheduled_batch.paused_requests)
            self._pause_requests(scheduled_batch.paused_requests)
            if self._prepare(scheduled_batch, self._can_queue(scheduled_batch)):
                batch_outputs = self._forward_step(scheduled_batch)
                sample_state = self._sample_async(scheduled_batch, batch_outputs)
                assert sample_state is not None, "Sampling failed"
                self._update_request_states(scheduled_batch)
                self._update_requests(sample_state)
                if since("D"):
                    self._update_context_resources(scheduled_batch)
                if since("B"):
                    self._send_kv_async(scheduled_batch.all_requests())
                self._handle_canceled_requests()
                self._handle_responses()
                self.resource_manager.update_resources(scheduled_batch)
            self._kv_connector_terminate_requests()

    if since("C"):

        def _executor_loop_pp(self) -> None:
            """Of the one rank that there is. Requests of a micro batch come to no other until it is handled, and that
            is when the next one has been launched. Upstream's fence does not stand here in any variant."""
            while True:
                idle = not self.active_requests and self.previous_batch is None
                self._fetch_new_requests(idle=idle)
                if self.is_shutdown and not self.active_requests and self.previous_batch is None:
                    break
                pauses.reach(pauses.CALL_SCHEDULE)
                scheduled_batch, _, _ = self._pp_schedule_and_propagate()
                self._terminate_requests(scheduled_batch.paused_requests)
                self._pause_requests(scheduled_batch.paused_requests)
                launched = None
                if self._prepare(scheduled_batch, self._can_queue(scheduled_batch)):
                    self.inflight_req_ids |= {each.request_id for each in scheduled_batch.all_requests()}
                    sample_state = self._sample_async(scheduled_batch, self._forward_step(scheduled_batch))
                    assert sample_state is not None, "Sampling failed"
                    self._update_request_states(scheduled_batch)
                    launched = BatchState(sample_state)
                if self.previous_batch is not None:
                    self._handle_previous_micro_batch(self.previous_batch)
                self.previous_batch = launched

        def _pp_schedule_and_propagate(self, _: int = 0) -> tuple[Any, list[Any], int]:
            """The first rank schedules, for all."""
            schedule: Any = self._schedule
            scheduled: tuple[Any, list[Any], int] = schedule(0.0) if MANGLED else schedule()
            return scheduled

        def _handle_previous_micro_batch(self, batch: BatchState) -> None:
            self._update_requests(batch.sample_state)
            self._handle_canceled_requests()
            self._handle_responses()
            self.resource_manager.update_resources(batch.scheduled_requests)
            self.inflight_req_ids -= {each.request_id for each in batch.scheduled_requests.all_requests()}

    if since("D"):

        def _wait_for_model_engine_input_copy(self) -> None:
            """Upstream's fence (surface 2.4, #14128). An engine that has no event is not waited for."""
            wait = getattr(self.model_engine, "wait_for_input_copy", None)
            if wait is not None:
                wait()

    def _prepare_and_schedule_batch(self) -> tuple[Any, Any]:
        """The batch, None when there will be no more, and statistics."""
        idle = not self.active_requests and self.previous_batch is None
        idle = idle and not self.async_transfer_manager.requests_in_transfer()
        self._fetch_new_requests(idle=idle)
        if self.is_shutdown and not self.active_requests and self.previous_batch is None:
            return None, None
        schedule: Any = self._schedule
        scheduled_batch, arriving, _ = schedule(0.0) if MANGLED else schedule()
        self._prepare_disagg_gen_init(arriving)
        return scheduled_batch, None

    def _prepare_disagg_gen_init(self, fitting_disagg_gen_init_requests: list[Any]) -> None:
        """Requests whose cache comes from elsewhere: straight to the managers, past ResourceManager (surface 1.8).

        Their blocks are allocated between scheduling and admission, so they may evict what was counted as reused.
        """
        if not fitting_disagg_gen_init_requests:
            return
        batch = ScheduledRequests()
        if since("B2"):
            batch.reset_context_requests(fitting_disagg_gen_init_requests)
        else:
            batch.context_requests = fitting_disagg_gen_init_requests
        managers = self.resource_manager.resource_managers
        for kind in (ResourceManagerType.KV_CACHE_MANAGER, ResourceManagerType.DRAFT_KV_CACHE_MANAGER):
            if kind in managers:
                managers[kind].prepare_resources(batch)
        for request in fitting_disagg_gen_init_requests:
            request.receive_cache()

    if MANGLED:

        def _schedule(self, deadline: float) -> tuple[Any, list[Any], int]:
            del deadline
            return self._schedule_batch()

    else:

        def _schedule(self) -> tuple[Any, list[Any], int]:  # type: ignore[misc]  # by variant
            return self._schedule_batch()

    def _schedule_batch(self) -> tuple[Any, list[Any], int]:
        output = self.scheduler.schedule_request(self.active_requests, self.inflight_req_ids)
        batch = ScheduledRequests()
        if since("B2"):
            batch.reset_context_requests(output.context_requests)
        else:
            batch.context_requests = output.context_requests
        batch.generation_requests = output.generation_requests
        batch.paused_requests = output.paused_requests
        return batch, output.fitting_disagg_gen_init_requests, output.num_fitting_requests

    def _terminate_requests(self, requests: list[Any]) -> None:
        for request in requests:
            self._terminate_request(request)

    def _pause_requests(self, requests: list[Any]) -> None:
        for request in requests:
            request.pause(self.max_input_len)

    def _can_queue(self, scheduled_batch: Any) -> bool:
        return bool(scheduled_batch.batch_size > 0)

    def _prepare(self, scheduled_batch: Any, can_queue: bool) -> bool:
        """Whether there still is something to run: loading requests leave the batch (surface 6.2)."""
        if can_queue:
            self.resource_manager.prepare_resources(scheduled_batch)
        if self.kv_connector_manager is not None and since("D"):
            self.kv_connector_manager.handle_metadata()  # on ranks too that have nothing to run
        if not can_queue:
            return False
        self._kv_connector_start_batch(scheduled_batch)
        # Until C the vote is taken again only where a connector may have taken requests out.
        if self.kv_connector_manager is not None or since("B2"):
            return self._can_queue(scheduled_batch)
        return True

    def _forward_step(self, scheduled_requests: Any) -> Any:
        try:
            outputs = self._forward_on_stream(scheduled_requests)
            self._kv_connector_wait_for_save()
            return outputs
        except Exception as error:
            self._handle_errors(str(error))
            return None

    def _forward_on_stream(self, scheduled_requests: Any) -> Any:
        """Since B the step runs on a stream of its own, fenced on both sides (surface 10)."""
        if not since("B"):
            return self._forward_models(scheduled_requests)
        current = tensors().current_stream()
        self.execution_stream.wait_stream(current)
        with tensors().on(self.execution_stream):
            outputs = self._forward_models(scheduled_requests)
        current.wait_stream(self.execution_stream)
        return outputs

    def _forward_models(self, scheduled_requests: Any) -> Any:
        outputs = self.model_engine.forward(scheduled_requests, self.resource_manager)
        if self.draft_model_engine is not None:
            self.draft_model_engine.forward(scheduled_requests, self.resource_manager)
        return outputs

    def _sample_async(self, scheduled_batch: Any, batch_outputs: Any) -> Any:
        if batch_outputs is None:
            return None
        return self.sampler.sample_async(scheduled_batch, batch_outputs)

    def _update_request_states(self, scheduled_batch: Any) -> None:
        for request in scheduled_batch.context_requests:
            if not request.is_generation_complete_state:  # it failed
                request.move_to_next_context_chunk()
            if request.context_remaining_length == 0:
                request.state = LlmRequestState.GENERATION_IN_PROGRESS
        if since("B2") and before("D"):
            self._update_context_resources(scheduled_batch)

    def _update_context_resources(self, scheduled_batch: Any) -> None:
        """Since D the plain loop waits for the batch's sample before it."""
        for manager in self.resource_manager.resource_managers.values():
            if hasattr(manager, "update_context_resources"):
                manager.update_context_resources(scheduled_batch)

    def _update_requests(self, sample_state: Any) -> None:
        self.sampler.update_requests(sample_state)
        self.model_engine.witness.judge()
        if self.draft_model_engine is not None:
            self.draft_model_engine.witness.judge()
        if self.contents is not None:
            self.contents.judge()

    def _process_previous_batch(self) -> None:
        assert self.previous_batch is not None
        self._handle_canceled_requests()
        self._handle_responses()
        self.resource_manager.update_resources(self.previous_batch.scheduled_requests)

    def _terminate_request(self, request: LlmRequest) -> None:
        if self.contents is not None:
            self.contents.forget(request)
        self._do_terminate_request(request)
