"""Classes that upstream's modules import and no excerpt holds: batches, fetching, the base of attention metadata."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


# ---- batches and sampling ----


class ScheduledRequests:
    """Like those of the eras in which the executor assigns the lists."""

    def __init__(self) -> None:
        self.context_requests: list[Any] = []
        self.generation_requests: list[Any] = []
        self.paused_requests: list[Any] = []
        self.encoder_requests: list[Any] = []

    @property
    def is_generation_only(self) -> bool:
        return not self.context_requests and all(len(each.draft_tokens or []) == 0 for each in self.generation_requests)

    @property
    def can_run_cuda_graph(self) -> bool:
        return not self.context_requests

    @property
    def batch_size(self) -> int:
        return len(self.context_requests) + len(self.generation_requests)

    @property
    def num_context_requests(self) -> int:
        return len(self.context_requests)

    def all_requests(self) -> list[Any]:
        return [*self.context_requests, *self.generation_requests]

    def reset_context_requests(self, context_requests: list[Any] | None = None) -> None:
        if context_requests is not None:
            self.context_requests = context_requests


@dataclass
class SerializableSchedulerOutput:
    """The ids of a batch's requests, because requests cannot be sent to another rank."""

    contexts: list[int]
    generations: list[int]
    paused: list[int]
    arriving: list[int]
    fitting: int

    @classmethod
    def from_scheduler_result(cls, batch: Any, arriving: list[Any], fitting: int) -> "SerializableSchedulerOutput":
        return cls(
            [each.request_id for each in batch.context_requests],
            [each.request_id for each in batch.generation_requests],
            [each.request_id for each in batch.paused_requests],
            [each.request_id for each in arriving],
            fitting,
        )

    def to_scheduler_result(self, active: list[Any]) -> tuple[Any, list[Any], int]:
        by_id = {each.request_id: each for each in active}
        batch = ScheduledRequests()
        batch.context_requests = [by_id[each] for each in self.contexts]
        batch.generation_requests = [by_id[each] for each in self.generations]
        batch.paused_requests = [by_id[each] for each in self.paused]
        return batch, [by_id[each] for each in self.arriving], self.fitting


@dataclass
class SamplerEvent:
    cuda_event: Any
    worker_futures: Any = None

    def synchronize(self) -> None:
        self.cuda_event.synchronize()


@dataclass(kw_only=True)
class SampleStateTensors:
    new_tokens: Any = None
    log_probs: Any = None


@dataclass(kw_only=True)
class SampleStateTensorsMTP(SampleStateTensors):
    """One-model speculation leaves this on the device."""

    new_tokens_lens: Any = None
    next_draft_tokens: Any = None


class SamplingParams:
    """The parameters of a dummy. The bound configuration consists only of its number of beams."""

    def __init__(self, n: int = 1, **_: Any) -> None:
        self.n = n

    def _get_sampling_config(self) -> int:
        return self.n


class MultimodalParams:
    """The parameters of a request without images."""

    multimodal_data = None

    def __init__(self, **_: Any) -> None:
        pass

    def has_content(self) -> bool:
        return False

    def strip_for_generation(self) -> None:
        pass


@dataclass(kw_only=True)
class SampleState:
    scheduled_requests: Any
    device: Any = None
    host: Any = None
    sampler_event: Any = None
    requests: Any = None
    num_scheduled_requests: int = 0


# ---- fetching ----


@dataclass
class RequestQueueItem:
    id: int
    request: Any = None
    is_shutdown_request: bool = False
    is_canceled_request: bool = False
    is_control_request: bool = False
    child_req_ids: Any = None


class RequestBroadcaster:
    def __init__(self, *_: Any) -> None:
        pass

    def broadcast(self, items: Any) -> tuple[Any, None]:
        return items, None


def get_from_waiting_queue(queue: Any, count: int, **_: Any) -> list[Any]:
    return [queue.popleft() for _ in range(min(count, len(queue)))]


def merge_requests(items: list[Any], **_: Any) -> list[Any]:
    """The scenario makes the requests itself; upstream would build them from what the client sent."""
    return [each.request for each in items]


class HangDetector:
    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> "HangDetector":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def checkpoint(self) -> None:
        pass

    def detected(self) -> bool:
        return False

    pause = staticmethod(nothing)
    cancel_task = checkpoint


# ---- attention ----


@dataclass(kw_only=True)
class KVCacheParams:
    use_cache: bool
    num_cached_tokens_per_seq: list[int] = field(default_factory=list)
    block_ids_per_seq: Any = None
    host_max_attention_window_sizes: Any = None
    num_extra_kv_tokens: int = 0


@dataclass(kw_only=True)
class AttentionMetadata:
    """The part of the base class that `prepare` of the TensorRT-LLM backend stands on."""

    max_num_requests: int
    max_num_tokens: int
    kv_cache_manager: Any
    max_num_sequences: int | None = None
    mapping: Any = None
    enable_flash_mla: bool = False
    enable_context_mla_with_cached_kv: bool = False
    is_cuda_graph: bool = False
    cuda_graph_buffers: Any = None
    request_ids: Any = None
    prompt_lens: Any = None
    kv_cache_params: Any = None
    runtime_features: Any = None
    num_contexts: int = 0
    num_seqs: int = 0
    seq_lens: Any = None
    seq_lens_kv: Any = None
    all_rank_num_tokens: Any = None
    draft_kv_cache_manager: Any = None

    def __post_init__(self) -> None:
        pass

    @property
    def num_generations(self) -> int:
        return self.num_seqs - self.num_contexts

    @staticmethod
    def get_empty(buffers: Any, shape: Any, *, dtype: Any, cache_name: str, capture_graph: bool = False) -> Any:
        del buffers, cache_name, capture_graph
        return torch.zeros(tuple(shape), device="cuda", dtype=dtype)

    @staticmethod
    def get_empty_like(buffers: Any, like: Any, *, cache_name: str, capture_graph: bool = False) -> Any:
        del buffers, cache_name, capture_graph
        return torch.zeros(tuple(like.shape), device="cuda", dtype=like.dtype)
