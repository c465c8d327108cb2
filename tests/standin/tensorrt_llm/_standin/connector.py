"""The loop talks to this where a connector is configured: the books of what it loads and saves (surface 6.1)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .._torch.pyexecutor.llm_request import LlmRequestState
from .._utils import mpi_allgather, mpi_broadcast, mpi_rank
from ..bindings.internal.batch_manager import KvCacheConnectorManager as BoundConnectorManager
from .batches import put_context_requests
from .connector_api import (
    KvCacheConnectorScheduler,
    KvCacheConnectorWorker,
    RequestData,
    SchedulerOutput,
)
from .connector_grouped import GroupedCallbacks
from .connector_reports import SchedulerOutputManager
from .tensors import tensors
from .variant import since

__all__ = [
    "KvCacheConnectorManager",
    "KvCacheConnectorScheduler",
    "KvCacheConnectorWorker",
    "RequestData",
    "SchedulerOutput",
]


@dataclass
class AsyncRequests:
    saving: dict[int, Any] = field(default_factory=dict)
    loading: dict[int, Any] = field(default_factory=dict)

    @property
    def saving_ids(self) -> set[int]:
        return set(self.saving)

    @property
    def loading_ids(self) -> set[int]:
        return set(self.loading)

    def add_from(self, other: "AsyncRequests") -> None:
        """The other has none any more."""
        self.saving |= other.saving
        self.loading |= other.loading
        other.saving, other.loading = {}, {}

    def extract_by_id(self, saving: Iterable[int], loading: Iterable[int]) -> "AsyncRequests":
        """KeyError where the worker names a request that it was not given."""
        return AsyncRequests({i: self.saving.pop(i) for i in saving}, {i: self.loading.pop(i) for i in loading})


class KvCacheConnectorManager(GroupedCallbacks, BoundConnectorManager):  # type: ignore[misc]  # by variant
    """The scheduler exists on rank 0; what it answers is broadcast. A V1 manager calls the query from C++."""

    def __init__(self, worker: KvCacheConnectorWorker, scheduler: KvCacheConnectorScheduler | None = None) -> None:
        assert (scheduler is not None) == (mpi_rank() == 0), "the scheduler may exist on rank 0 only"
        super().__init__()
        self.worker = worker
        self.scheduler = scheduler
        self.new_async_requests = AsyncRequests()  # not passed to the worker's get_finished
        self.pending_async_requests = AsyncRequests()  # passed, not returned
        self.local_finished_async_requests = AsyncRequests()  # returned here, not on all ranks
        self.finished_async_loading_requests: dict[int, Any] = {}
        self.scheduler_output_manager = SchedulerOutputManager()
        self._scheduler_output: SchedulerOutput | None = None
        # Such a worker shares its tier, and learns of no step.
        self.capacity_only = getattr(worker, "capacity_only", False) is True

    # One query for each allocation.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        """Called by the bound manager from inside an allocation, with a copy of the request (surface 4.4)."""
        if request.is_generation_only_request:
            raise RuntimeError("a connector takes no generation-only requests")
        matched, is_async = self._query(request, num_computed_tokens)
        self._commit(request, matched, is_async)
        return matched

    def _query(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        matched, is_async = self._run_on_leader(
            lambda scheduler: scheduler.get_num_new_matched_tokens(request, num_computed_tokens)
        )
        if is_async and not matched:
            raise RuntimeError("load_kv_async must be False when num_tokens is 0!")
        return int(matched), bool(is_async)

    def _commit(self, request: Any, num_tokens: int, load_kv_async: bool) -> None:
        """The allocation takes as many as it can; where it takes none, an asynchronous load is awaited all the same."""
        if load_kv_async:
            self.new_async_requests.loading[request.request_id] = request
        self.scheduler_output_manager.record_new_matched_tokens(request, num_tokens)

    if since("D"):
        query_num_new_matched_tokens = _query

        def commit_new_matched_tokens(self, request: Any, num_tokens: int, load_kv_async: bool) -> None:
            self._commit(request, num_tokens, load_kv_async)
            request.py_num_connector_matched_tokens = num_tokens

    def should_add_sequence(self, request: Any) -> bool:
        return request.request_id not in self.finished_async_loading_requests

    # A step.

    def build_scheduler_output(self, scheduled_batch: Any, kv_cache_manager: Any) -> None:
        """The connector believes the batch as it is when this is called."""
        if self.capacity_only:
            return
        self._scheduler_output = self.scheduler_output_manager.build_scheduler_output(
            scheduled_batch, self.new_async_requests, kv_cache_manager
        )

    def take_scheduled_requests_pending_load(self, scheduled_batch: Any) -> None:
        """They leave the batch until the worker says that their load is over."""
        loading, staying = self.new_async_requests.loading, []
        for request in scheduled_batch.context_requests:
            if request.request_id in loading:
                request.state = LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS
                loading[request.request_id] = request  # in place of C++'s copy
            else:
                staying.append(request)
        put_context_requests(scheduled_batch, staying)

    def handle_metadata(self) -> None:
        """Since D an iteration that has built nothing returns here; before, it is called only where something was."""
        if self._scheduler_output is None and since("D"):
            return
        output, self._scheduler_output = self._scheduler_output, None
        self.worker.bind_connector_meta(self._run_on_leader(lambda scheduler: scheduler.build_connector_meta(output)))

    def layer_pre_hook(self, module: Any, *_: Any) -> None:
        self.worker.wait_for_layer_load(module.layer_idx, tensors().current_stream())

    def layer_post_hook(self, module: Any, *_: Any) -> None:
        self.worker.save_kv_layer(module.layer_idx, tensors().current_stream())

    def wait_for_initialization(self) -> None:
        if self.scheduler is not None:
            self.scheduler.wait_for_initialization()

    # The ends.

    def get_finished(self) -> list[Any]:
        """Those that are saved on all ranks. Those that are loaded on all ranks may be scheduled again.

        A load that was cancelled meanwhile is no exception: the dead request goes back to CONTEXT_INIT.
        """
        if self.capacity_only:
            return []
        started = list(self.new_async_requests.saving), list(self.new_async_requests.loading)
        self.pending_async_requests.add_from(self.new_async_requests)
        saved, loaded = self.worker.get_finished(*started)
        local = self.local_finished_async_requests
        local.add_from(self.pending_async_requests.extract_by_id(saved, loaded))
        told = mpi_allgather((local.saving_ids, local.loading_ids))
        everywhere = [sorted(set.intersection(*ids)) for ids in zip(*told, strict=True)]
        finished = local.extract_by_id(*everywhere)
        for request_id, request in finished.loading.items():
            request.state = LlmRequestState.CONTEXT_INIT
            self.finished_async_loading_requests[request_id] = request
        return list(finished.saving.values())

    def _save(self, request: Any, answer: bool) -> bool:
        if answer:
            self.new_async_requests.saving[request.request_id] = request
            request.state = LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS
        return answer

    if since("D"):

        def has_pending_transfers(self, request_id: int) -> bool:
            return request_id in self.get_pending_transfer_requests()

        def get_pending_transfer_requests(self) -> dict[int, Any]:
            places = self.new_async_requests, self.pending_async_requests, self.local_finished_async_requests
            return {i: each for place in places for i, each in (place.loading | place.saving).items()}

        def reset_request_state(self, request: Any) -> None:
            self.scheduler_output_manager.reset_request(request.request_id)
            if since("F"):
                self.finished_async_loading_requests.pop(request.request_id, None)
                if self.scheduler is not None:
                    self.scheduler.request_reset(request)

    if since("F"):

        def shutdown(self) -> None:
            self.worker.shutdown()

    def _run_on_leader(self, ask: Callable[[Any], Any]) -> Any:
        return mpi_broadcast(None if self.scheduler is None else ask(self.scheduler), root=0)
