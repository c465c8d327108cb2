"""What upstream's modules import and a scenario runs through, where the tree does not have it: small, and ours.

Each of these stands for a helper whose behaviour decides nothing that a scenario looks at. Bound classes come from
`kvfix_bound`. Everything that is not here and not in the tree is a double.
"""

import enum
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from integration.upstream.doubles import DoubledModule

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tensorrt_llm"


class BoundMissing(RuntimeError):
    """`kvfix_bound` is not built."""


def bound_module() -> Any:
    """The extension that declares what TensorRT-LLM binds, with books of its own."""
    folder = str(ROOT / "build" / "bound")
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return __import__("kvfix_bound")
    except ImportError as error:
        raise BoundMissing(f"build/bound has no kvfix_bound for this interpreter ({error}); run `make bound`") from None


# ---- helpers that decorate, wrap and say ----


def passes_through(*_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda function: function


@contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


class Logger:
    """Keeps errors and warnings: a scenario that ends in one says so."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def say(*words: Any, **_: Any) -> None:
            if level in ("error", "warning"):
                self.said.append((level, " ".join(map(str, words))))

        return say


class CpType(enum.Enum):
    ULYSSES = 0
    STAR = 1
    RING = 2
    HELIX = 3


class Mapping:
    """One rank of one."""

    def __init__(self, **_: Any) -> None:
        self.rank = self.tp_rank = self.pp_rank = self.cp_rank = self.local_rank = 0
        self.world_size = self.tp_size = self.pp_size = self.cp_size = self.dp_size = self.gpus_per_node = 1
        self.enable_attention_dp = False
        self.cp_config: dict[str, Any] = {}
        self.tp_group = [0]

    def has_cp_helix(self) -> bool:
        return False

    def is_last_pp_rank(self) -> bool:
        return True

    def is_first_pp_rank(self) -> bool:
        return True

    def has_pp(self) -> bool:
        return False

    def has_cp(self) -> bool:
        return False

    def pp_layers(self, num_layers: int) -> list[int]:
        return list(range(num_layers))


@dataclass
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = None
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    secondary_offload_min_priority: int | None = None
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    use_kv_cache_manager_v2: bool = False


# ---- batches and sampling ----


class ScheduledRequests:
    """As in the eras in which the executor assigns the lists."""

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
        return self.context_requests + self.generation_requests

    def reset_context_requests(self, context_requests: list[Any] | None = None) -> None:
        if context_requests is not None:
            self.context_requests = context_requests


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
    """As much of the base class as `prepare` of the TensorRT-LLM backend stands on."""

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


def module(name: str, **names: Any) -> tuple[str, ModuleType]:
    made = DoubledModule(f"{PACKAGE}.{name}" if name else PACKAGE)
    vars(made).update(names)
    return made.__name__, made


def modules(era: str, logger: Logger) -> dict[str, ModuleType]:
    """Everything provided, by the name under which upstream imports it."""
    from integration.upstream.bindings import binding_modules  # noqa: PLC0415  it needs the extension

    executor = "_torch.pyexecutor"
    utils = {
        "nvtx_range": passes_through,
        "nvtx_range_debug": passes_through,
        "customized_gc_thresholds": nothing,
        "is_trace_enabled": lambda _: False,
        "mpi_disabled": lambda: False,
        "mpi_rank": lambda: 0,
        "mpi_world_size": lambda: 1,
        "mpi_broadcast": lambda value, root=0: value,
        "mpi_allgather": lambda value: [value],
        "prefer_pinned": lambda: True,
        "maybe_pin_memory": lambda tensor: tensor.pin_memory(),
        "get_size_in_bytes": lambda count, dtype: count * 2,
        "binding_to_str_dtype": lambda dtype: "float16",
    }
    attention = {"AttentionMetadata": AttentionMetadata, "KVCacheParams": KVCacheParams}
    sampler = {each.__name__: each for each in (SampleState, SampleStateTensors, SamplerEvent)}
    found = [
        module("_utils", **utils),
        module("logger", logger=logger),
        module("math_utils", ceil_div=lambda a, b: -(-a // b)),
        module("mapping", CpType=CpType, Mapping=Mapping),
        module("llmapi.llm_args", KvCacheConfig=KvCacheConfig),
        module("_torch.speculative", get_num_extra_kv_tokens=lambda spec: 0),
        module("_torch.attention_backend.interface", **attention),
        module("_torch.hostfunc", hostfunc=passes_through),
        module("_torch.utils", get_model_extra_attrs=lambda: {}, with_model_extra_attrs=passes_through),
        module(f"{executor}.scheduler", ScheduledRequests=ScheduledRequests),
        module(f"{executor}.sampler", **sampler),
        module(f"{executor}.hang_detector", HangDetector=HangDetector),
        module(f"{executor}.executor_request_queue", RequestQueueItem=RequestQueueItem),
        module(
            f"{executor}.request_utils",
            RequestBroadcaster=RequestBroadcaster,
            get_from_waiting_queue=get_from_waiting_queue,
            merge_requests=merge_requests,
        ),
        module("serve.responses_utils", get_steady_clock_now_in_seconds=lambda: 0.0),
    ]
    return dict(found) | binding_modules(era)


# Names that a file of excerpts uses and does not import, because no excerpt holds its imports.
def head_names(provided: dict[str, ModuleType]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for each in provided.values():
        public = {name: value for name, value in vars(each).items() if not name.startswith("_")}
        names.update({name: value for name, value in public.items() if not isinstance(value, SimpleNamespace)})
    return names
