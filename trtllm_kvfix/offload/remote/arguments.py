"""The arguments of an engine as part of its blocks' names.

An argument counts unless it is known to change no block. So what a later release adds keeps engines apart that differ
in it, and never lets one read what another would have computed otherwise.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

# The weights are known by the digests of their files, or by kvfix.offload.remote.model.
UNRELATED = frozenset((
    "model", "tokenizer", "tokenizer_mode", "tokenizer_revision", "custom_tokenizer", "skip_tokenizer_init",
    "postprocess_tokenizer_dir", "post_processor_hook", "num_postprocess_workers", "num_serve_frontends",
    "reasoning_parser", "guided_decoding_backend", "batched_logits_processor", "gather_generation_logits",
    "decoding_config", "stream_interval",
    "max_batch_size", "max_num_tokens", "max_input_len", "max_seq_len", "max_beam_width", "enable_chunked_prefill",
    "scheduler_config", "attention_dp_config", "batch_wait_timeout_ms", "batch_wait_timeout_iters",
    "batch_wait_max_tokens_ratio", "reorder_policy_config", "disable_overlap_scheduler",
    "enable_early_first_token_response", "enable_resource_governor",
    "cuda_graph_config", "torch_compile_config", "prefill_cuda_graph_backend", "prefill_capture_num_tokens",
    "enable_autotuner", "use_cuda_graph", "cuda_graph_batch_sizes", "cuda_graph_max_batch_size",
    "cuda_graph_padding_enabled", "enable_low_latency_host_dispatch", "sampler_type", "sampler_force_async_worker",
    "enable_in_graph_sampling", "enable_speculative_beam_history_d2h", "enable_trtllm_sampler",
    "garbage_collection_gen0_threshold",
    "peft_cache_config", "kv_cache_config", "kv_connector_config", "cache_transceiver_config", "sleep_config",
    "checkpoint_io_policy", "extra_resource_managers", "gpus_per_node", "mpi_session", "backend", "orchestrator_type",
    "ray_worker_extension_cls", "ray_placement_config", "ray_worker_nsight_options",
    "iter_stats_max_iterations", "request_stats_max_iterations", "enable_iter_perf_stats", "enable_iter_req_stats",
    "print_iter_log", "max_stats_len", "enable_layerwise_nvtx_marker", "return_perf_metrics",
    "perf_metrics_output_dir", "perf_metrics_max_requests", "prometheus_metrics_config", "enable_energy_metrics",
    "otlp_traces_endpoint", "telemetry_config",
))  # fmt: skip
# Of kv_cache_config: how much room there is, what is kept in it, and what is said of it.
UNRELATED_TO_CACHE = frozenset((
    "enable_block_reuse", "enable_partial_reuse", "copy_on_partial_reuse", "block_reuse_policy", "max_tokens",
    "max_blocks", "host_blocks", "free_gpu_memory_fraction", "max_gpu_total_bytes", "host_cache_size",
    "disk_cache_size", "disk_cache_path", "onboard_blocks", "use_uvm", "cross_kv_cache_fraction",
    "secondary_offload_min_priority", "event_buffer_max_size", "attention_dp_events_gather_period_ms",
    "max_util_for_resume", "pool_ratio", "avg_seq_len",
))  # fmt: skip
# Not a field of upstream's arguments: it is filled in from the checkpoint.
ALSO = ("quant_config",)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Unnamed(ValueError):
    """An argument is an object of which nothing but its class can be told."""


def of_engine(llm_args: Any, *, opaque: bool) -> dict[str, str]:
    """`opaque`: take an object's class for its contents. Otherwise such an object raises Unnamed."""
    cache = llm_args.kv_cache_config
    told = {name: (llm_args, name) for name in (*_names(llm_args), *ALSO) if name not in UNRELATED}
    told |= {f"kv_cache_config.{name}": (cache, name) for name in _names(cache) if name not in UNRELATED_TO_CACHE}
    return {full: _spelled(full, getattr(owner, name, None), opaque) for full, (owner, name) in told.items()}


def _names(model: Any) -> Iterable[str]:
    """Fields of one of upstream's models, which are pydantic's."""
    fields: Iterable[str] = getattr(type(model), "model_fields", None) or vars(model)
    return fields


def _spelled(name: str, value: Any, opaque: bool) -> str:
    """The same in each process and on each node, which `repr` is not."""
    found = _contents(value)
    if found is not None:
        kind, contents = found
        spelled = [_spelled(name, each, opaque) for each in contents]
        return f"{kind}({', '.join(spelled if kind == 'list' else sorted(spelled))})"
    said = _leaf(value)
    if ADDRESS.search(said) is None:
        return said
    if not opaque:
        raise Unnamed(f"{name} is an object of {_class_name(type(value))}")
    return _class_name(type(value))


def _contents(value: Any) -> tuple[str, Iterable[Any]] | None:
    if isinstance(value, list | tuple):
        return "list", value
    if isinstance(value, set | frozenset):
        return "set", value
    if isinstance(value, Mapping):
        return "mapping", value.items()
    is_model = hasattr(type(value), "model_fields")
    if isinstance(value, type) or not (is_model or dataclasses.is_dataclass(value)):
        return None
    names = _names(value) if is_model else [each.name for each in dataclasses.fields(value)]
    return _class_name(type(value)), ((name, getattr(value, name)) for name in names)


def _leaf(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return repr(str(value))
    return _class_name(value) if isinstance(value, type) else repr(value)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
