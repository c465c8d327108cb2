"""What the loop talks to where a connector is configured: the books of what it loads and saves (surface 6.1)."""

from collections.abc import Callable
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
from .connector_reports import Reports

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

    def take_all(self) -> "AsyncRequests":
        taken = AsyncRequests(self.saving, self.loading)
        self.saving, self.loading = {}, {}
        return taken

    def take(self, saving: list[int], loading: list[int]) -> "AsyncRequests":
        """KeyError where the worker names a request that it was not given."""
        return AsyncRequests({i: self.saving.pop(i) for i in saving}, {i: self.loading.pop(i) for i in loading})

    def add(self, other: "AsyncRequests") -> None:
        self.saving.update(other.saving)
        self.loading.update(other.loading)


class KvCacheConnectorManager(BoundConnectorManager):  # type: ignore[misc]  # by variant
    """The scheduler exists on rank 0; what it answers is broadcast."""

    def __init__(self, worker: KvCacheConnectorWorker, scheduler: KvCacheConnectorScheduler | None = None) -> None:
        assert (scheduler is not None) == (mpi_rank() == 0), "the scheduler may exist on rank 0 only"
        super().__init__()
        self.worker = worker
        self.scheduler = scheduler
        self.new_async_requests = AsyncRequests()  # not passed to the worker's get_finished
        self.pending_async_requests = AsyncRequests()  # passed, not returned
        self.local_finished_async_requests = AsyncRequests()  # returned here, not on all ranks
        self._loaded: set[int] = set()
        self._reports = Reports()
        self._scheduler_output: SchedulerOutput | None = None

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        """Called by the bound manager from inside an allocation (surface 4.4)."""
        matched, is_async = self._run_on_leader(
            lambda scheduler: scheduler.get_num_new_matched_tokens(request, num_computed_tokens)
        )
        if is_async and not matched:
            raise RuntimeError("load_kv_async must be False when num_tokens is 0!")
        if is_async:
            self.new_async_requests.loading[request.request_id] = request
        self._reports.promised(request.request_id, matched)
        return int(matched)

    def should_add_sequence(self, request: Any) -> bool:
        return request.request_id not in self._loaded

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        if self.scheduler is not None:
            self.scheduler.update_state_after_alloc(request, block_ids)

    def build_scheduler_output(self, scheduled_batch: Any, kv_cache_manager: Any) -> None:
        """What the batch is when this is called is what the connector believes."""
        loading = self.new_async_requests.loading
        self._scheduler_output = self._reports.of(scheduled_batch, loading, kv_cache_manager)

    def take_scheduled_requests_pending_load(self, scheduled_batch: Any) -> None:
        """They leave the batch until the worker says that their load is over."""
        loading, staying = self.new_async_requests.loading, []
        for request in scheduled_batch.context_requests:
            if request.request_id in loading:
                request.state = LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS
                loading[request.request_id] = request  # C++ gave a copy
            else:
                staying.append(request)
        put_context_requests(scheduled_batch, staying)

    def handle_metadata(self) -> None:
        output, self._scheduler_output = self._scheduler_output, None
        self.worker.bind_connector_meta(self._run_on_leader(lambda scheduler: scheduler.build_connector_meta(output)))

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        """True: the blocks are in use until get_finished returns the request."""
        self._loaded.discard(request.request_id)
        self._reports.forget(request.request_id)
        saving = bool(self._run_on_leader(lambda scheduler: scheduler.request_finished(request, cache_block_ids)))
        if saving:
            self.new_async_requests.saving[request.request_id] = request
            request.state = LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS
        return saving

    def get_finished(self) -> list[Any]:
        """Those that are saved on all ranks. Those that are loaded on all ranks may be scheduled again."""
        new = self.new_async_requests.take_all()
        self.pending_async_requests.add(new)
        saved, loaded = self.worker.get_finished(list(new.saving), list(new.loading))
        local = self.local_finished_async_requests
        local.add(self.pending_async_requests.take(saved, loaded))
        told = mpi_allgather((set(local.saving), set(local.loading)))
        everywhere = [sorted(set.intersection(*ids)) for ids in zip(*told, strict=True)]
        finished = local.take(*everywhere)
        for request in finished.loading.values():
            request.state = LlmRequestState.CONTEXT_INIT
            self._loaded.add(request.request_id)
        return list(finished.saving.values())

    def _run_on_leader(self, ask: Callable[[Any], Any]) -> Any:
        return mpi_broadcast(None if self.scheduler is None else ask(self.scheduler), root=0)
