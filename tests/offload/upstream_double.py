"""The connector meets this much of upstream: requests, reports of a step, and the manager before the executor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

from trtllm_kvfix.offload.patches import choosing_from_shown
from trtllm_kvfix.ranks import OneRank, Ranks


class State(Enum):
    WAITING = auto()
    CONTEXT = auto()
    GENERATION = auto()
    LOADING = auto()
    SAVING = auto()
    GONE = auto()


@dataclass(eq=False)
class Request:
    request_id: int
    tokens: list[int]  # that the host knows
    max_new_tokens: int = 2
    lora_task_id: int | None = None
    cache_salt_id: int | None = None
    state: State = State.WAITING
    context_current_position: int = 0
    sampled: list[int] = field(default_factory=list)  # that the device knows, besides the prompt
    cancelled: bool = False
    py_multimodal_data: dict[str, Any] | None = None
    sampling_config: Any = field(default_factory=lambda: SimpleNamespace(beam_width=1))

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)
        self.first_prompt_len = self.prompt_len

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)

    @property
    def py_request_id(self) -> int:
        return self.request_id

    @property
    def is_context_init_state(self) -> bool:
        return self.state in (State.WAITING, State.CONTEXT)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.first_prompt_len


@dataclass
class RequestData:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    priorities: list[int] | None = None
    new_block_ids_by_layer_group: list[list[int]] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    new_requests: list[RequestData] = field(default_factory=list)
    cached_requests: list[RequestData] = field(default_factory=list)
    prefix_loads: list[Any] = field(default_factory=list)  # of the newest upstream; tests/offload/reserving.py


@dataclass
class AsyncRequests:
    saving: dict[int, Request] = field(default_factory=dict)
    loading: dict[int, Request] = field(default_factory=dict)


class RequestScheduler:
    """Upstream's, as far as the connector has a part in it: the requests that it may choose from."""

    def __init__(self, kv_cache_manager: Any) -> None:
        self.kv_cache_manager = kv_cache_manager

    def schedule_request(self, active: Sequence[Request]) -> Sequence[Request]:
        return active


RequestScheduler.schedule_request = choosing_from_shown(RequestScheduler.schedule_request)  # type: ignore[method-assign]


class ConnectorManager:
    """One rank's, with the scheduler side on rank 0. Keeps its books as upstream's does."""

    def __init__(self, worker: Any, scheduler: Any, ranks: Ranks | None = None) -> None:
        self.worker, self.scheduler, self.ranks = worker, scheduler, ranks or OneRank()
        self.new_async_requests = AsyncRequests()
        self.pending_async_requests = AsyncRequests()
        self.local_finished_async_requests = AsyncRequests()
        self.finished_loading: dict[int, Request] = {}
        # Numbers that blocks have in each layer group, where there are several; then there is no other list of them.
        self.by_group: Callable[[Sequence[int]], list[list[int]]] | None = None
        self._known: dict[int, tuple[int, int]] = {}  # request -> tokens and blocks reported so far
        self._external: dict[int, int] = {}

    @property
    def finished_async_loading_requests(self) -> dict[int, Request]:
        return self.finished_loading

    def on_leader(self, answer: Any) -> Any:
        return self.ranks.gather(answer() if self.scheduler is not None else None)[0]

    def get_num_new_matched_tokens(self, request: Request, computed: int) -> int:
        tokens, is_async = self.on_leader(lambda: self.scheduler.get_num_new_matched_tokens(request, computed))
        assert tokens or not is_async
        if is_async:
            self.new_async_requests.loading[request.request_id] = request
        return int(tokens)

    def update_state_after_alloc(self, request: Request, blocks: Sequence[int]) -> None:
        by_group = self.by_group
        if by_group is None:
            self.on_leader(lambda: self.scheduler.update_state_after_alloc(request, list(blocks)))
        else:
            self.on_leader(lambda: self.scheduler.update_state_after_alloc_by_layer_group(request, by_group(blocks)))

    def start_step(self, scheduled: Sequence[tuple[Request, list[int], int]], stream: int | None) -> None:
        """`scheduled`: requests with their blocks and the number of tokens of this step. No stream: the batch was empty
        before requests that load were taken out of it."""
        output = SchedulerOutput()
        for request, blocks, tokens in scheduled:
            is_new = request.request_id not in self._known
            tokens_before, blocks_before = self._known.get(request.request_id, (0, 0))
            generating = request.state is State.GENERATION
            new_blocks = blocks[blocks_before:]
            data = RequestData(
                request.request_id, request.tokens[tokens_before:], new_blocks if self.by_group is None else [],
                len(request.tokens) - 1 if generating else request.context_current_position, tokens,
                new_block_ids_by_layer_group=self.by_group(new_blocks) if self.by_group else [],
            )  # fmt: skip
            self._known[request.request_id] = len(request.tokens), max(blocks_before, len(blocks))
            (output.new_requests if is_new else output.cached_requests).append(data)
        self.tell(output)
        if stream is not None:
            self.worker.start_load_kv(stream)

    def tell(self, output: SchedulerOutput) -> None:
        self.worker.bind_connector_meta(self.on_leader(lambda: self.scheduler.build_connector_meta(output)))

    def request_finished(self, request: Request, blocks: Sequence[int]) -> bool:
        self.finished_loading.pop(request.request_id, None)
        self._known.pop(request.request_id, None)
        by_group = self.by_group
        if by_group is None:
            saving = bool(self.on_leader(lambda: self.scheduler.request_finished(request, list(blocks))))
        else:
            groups = by_group(blocks)
            saving = bool(self.on_leader(lambda: self.scheduler.request_finished_by_layer_group(request, groups)))
        if saving:
            self.new_async_requests.saving[request.request_id] = request
        return saving

    def get_finished(self) -> list[Request]:
        new, pending, local = self.new_async_requests, self.pending_async_requests, self.local_finished_async_requests
        saving, loading = self.worker.get_finished(list(new.saving), list(new.loading))
        for kind in ("saving", "loading"):
            getattr(pending, kind).update(getattr(new, kind))
            getattr(new, kind).clear()
        for ids, kind in ((saving, "saving"), (loading, "loading")):
            for request_id in ids:
                getattr(local, kind)[request_id] = getattr(pending, kind).pop(request_id)
        told = self.ranks.gather((set(local.saving), set(local.loading)))
        saved = set.intersection(*(one[0] for one in told))
        loaded = set.intersection(*(one[1] for one in told))
        for request_id in sorted(loaded):
            request = local.loading.pop(request_id)
            if request.state is State.LOADING:
                request.state = State.CONTEXT
            self.finished_loading[request_id] = request
        return [local.saving.pop(request_id) for request_id in sorted(saved)]
