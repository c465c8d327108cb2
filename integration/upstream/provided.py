"""Upstream's modules import these and a scenario runs through them, where the tree lacks them: small, and ours.

Each of these stands for a helper whose behaviour decides nothing that a scenario looks at. Bound classes come from
`kvfix_bound`. Everything that is not here and not in the tree is a double.
"""

import enum
import sys
from collections.abc import Callable
from collections.abc import Mapping as Mapping_
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from integration.upstream.doubles import DoubledModule
from integration.upstream.parts import (
    AttentionMetadata,
    HangDetector,
    KVCacheParams,
    MultimodalParams,
    RequestBroadcaster,
    RequestQueueItem,
    SamplerEvent,
    SampleState,
    SampleStateTensors,
    SampleStateTensorsMTP,
    SamplingParams,
    ScheduledRequests,
    SerializableSchedulerOutput,
    get_from_waiting_queue,
    merge_requests,
    nothing,
)

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


class Range:
    """Marks nothing: a decorator, and a context."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def as_it_is(value: Any) -> Any:
    return value


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


def one_rank() -> Any:
    """The executor calls this `dist`."""
    mapping = Mapping()
    return SimpleNamespace(
        rank=0,
        tp_rank=0,
        pp_rank=0,
        tp_size=1,
        pp_size=1,
        cp_size=1,
        world_size=1,
        has_pp=False,
        has_tp=False,
        has_cp_helix=False,
        is_first_pp_rank=True,
        is_last_pp_rank=True,
        cp_config={},
        cp_rank=0,
        mapping=mapping,
        barrier=lambda: None,
        allgather=lambda value: [value],
        tp_allgather=lambda value: [value],
        broadcast=lambda value, **_: value,
    )


def module(name: str, **names: Any) -> tuple[str, ModuleType]:
    made = DoubledModule(f"{PACKAGE}.{name}" if name else PACKAGE)
    vars(made).update(names)
    return made.__name__, made


def _utils() -> dict[str, Any]:
    return {
        "nvtx_range": Range,
        "nvtx_range_debug": passes_through,
        "customized_gc_thresholds": nothing,
        "is_trace_enabled": lambda _: False,
        "mpi_disabled": lambda: False,
        "mpi_rank": lambda: 0,
        "mpi_world_size": lambda: 1,
        "mpi_broadcast": lambda value, **_: value,
        "mpi_allgather": lambda value: [value],
        # Ranks of a scenario have the same number of blocks.
        # The overlay asks for its size where mpi4py has been imported: each rank of a scenario is a group of its own.
        "mpi_comm": lambda: SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1, allreduce=lambda value, **_: value),
        "prefer_pinned": lambda: True,
        "maybe_pin_memory": lambda tensor: tensor.pin_memory(),
        "get_size_in_bytes": lambda count, _: count * 2,
        "binding_to_str_dtype": lambda _: "float16",
    }


def modules(era: str, logger: Logger) -> dict[str, ModuleType]:
    """Everything provided, by the name under which upstream imports it."""
    from integration.upstream.bindings import binding_modules  # noqa: PLC0415  it needs the extension

    executor = "_torch.pyexecutor"
    attention = {"AttentionMetadata": AttentionMetadata, "KVCacheParams": KVCacheParams}
    torch_utils = {
        "get_model_extra_attrs": dict,
        "with_model_extra_attrs": passes_through,
        "make_weak_ref": as_it_is,
    }
    sampler = {each.__name__: each for each in (SampleState, SampleStateTensors, SamplerEvent)}
    found = [
        module("_utils", **_utils()),
        module("logger", logger=logger),
        module("math_utils", ceil_div=lambda a, b: -(-a // b)),
        module("mapping", CpType=CpType, Mapping=Mapping),
        module("llmapi.llm_args", KvCacheConfig=KvCacheConfig),
        module("_torch.speculative", get_num_extra_kv_tokens=lambda _: 0),
        module("_torch.attention_backend.interface", **attention),
        module("_torch.metadata", KVCacheParams=KVCacheParams),
        module("_torch.hostfunc", hostfunc=passes_through),
        module("_torch.utils", **torch_utils),
        module(
            f"{executor}.scheduler",
            ScheduledRequests=ScheduledRequests,
            SerializableSchedulerOutput=SerializableSchedulerOutput,
        ),
        module(f"{executor}.sampler", **sampler),
        module(f"{executor}.hang_detector", HangDetector=HangDetector),
        module(f"{executor}.executor_request_queue", RequestQueueItem=RequestQueueItem),
        module(
            f"{executor}.request_utils",
            RequestBroadcaster=RequestBroadcaster,
            get_from_waiting_queue=get_from_waiting_queue,
            merge_requests=merge_requests,
        ),
        module("sampling_params", SamplingParams=SamplingParams),
        module("inputs.multimodal", MultimodalParams=MultimodalParams),
        module("_torch.speculative.mtp", SampleStateTensorsMTP=SampleStateTensorsMTP),
        module("serve.responses_utils", get_steady_clock_now_in_seconds=lambda: 0.0),
    ]
    return dict(found) | binding_modules(era)


# Names that a file of excerpts uses and does not import, because no excerpt holds its imports.
def head_names(provided: Mapping_[str, ModuleType]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for each in provided.values():
        public = {name: value for name, value in vars(each).items() if not name.startswith("_")}
        names.update({name: value for name, value in public.items() if not isinstance(value, SimpleNamespace)})
    return names
