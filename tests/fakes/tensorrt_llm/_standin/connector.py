"""KV connectors: what a plug-in implements, and the manager that the loop talks to (surface 6.1)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from .variant import since


@dataclass
class RequestData:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class SchedulerOutput:
    new_requests: list[RequestData] = field(default_factory=list)
    cached_requests: list[RequestData] = field(default_factory=list)


class KvCacheConnectorWorker(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: Any = None

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def get_connector_meta(self) -> Any:
        return self._metadata

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...

    @abstractmethod
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]: ...


class KvCacheConnectorScheduler(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args

    @abstractmethod
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Any: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]: ...

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...


class KvCacheConnectorManager:
    """Rank 0's scheduler decides; there is one rank here. Loads are synchronous: what matches is there at once."""

    def __init__(self, worker: KvCacheConnectorWorker, scheduler: KvCacheConnectorScheduler) -> None:
        self.worker = worker
        self.scheduler = scheduler
        self._known: set[int] = set()
        self._scheduler_output = SchedulerOutput()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        """Called by the bound manager from inside an allocation (surface 4.4)."""
        matched, is_async = self.scheduler.get_num_new_matched_tokens(request, num_computed_tokens)
        assert not is_async, "the stand-in loads synchronously"
        return matched

    def should_add_sequence(self, request: Any) -> bool:
        del request
        return True

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        self.scheduler.update_state_after_alloc(request, block_ids)

    def build_scheduler_output(self, scheduled_batch: Any, kv_cache_manager: Any) -> None:
        """What the batch is when this is called is what the connector believes."""
        output = SchedulerOutput()
        for request in scheduled_batch.context_requests:
            data = self._data_of(request, kv_cache_manager, request.context_chunk_size)
            (output.cached_requests if request.request_id in self._known else output.new_requests).append(data)
            self._known.add(request.request_id)
        drafts = since("D")  # a generation is counted with its drafts since then
        for request in scheduled_batch.generation_requests:
            tokens = 1 + (len(request.py_draft_tokens) if drafts else 0)
            output.cached_requests.append(self._data_of(request, kv_cache_manager, tokens))
        self._scheduler_output = output

    def take_scheduled_requests_pending_load(self, scheduled_batch: Any) -> None:
        """Takes out what still loads asynchronously: nothing here."""

    def handle_metadata(self) -> None:
        self.worker.bind_connector_meta(self.scheduler.build_connector_meta(self._scheduler_output))

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        self._known.discard(request.request_id)
        return self.scheduler.request_finished(request, cache_block_ids)

    @staticmethod
    def _data_of(request: Any, kv_cache_manager: Any, num_scheduled_tokens: int) -> RequestData:
        return RequestData(
            request_id=request.request_id,
            new_tokens=request.get_tokens(0),
            new_block_ids=kv_cache_manager.get_cache_indices(request),
            computed_position=request.context_current_position,
            num_scheduled_tokens=num_scheduled_tokens,
        )
