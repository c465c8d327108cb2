"""The model's plain values as objects of the extension, and back."""

import ctypes

import numpy as np

from trtllm_kvfix import native

from .model import Config, Request, Retention
from .scenes import SEED

CARRIERS = ("list", "tuple", "int32", "int64", "ctypes")


def native_config(config: Config, events_max: int = 0, hash_bits: int = 128) -> native.BlockManagerConfig:
    sizes = [window.size for window in config.windows if window.size is not None]
    first = config.windows[0]
    return native.BlockManagerConfig(
        tokens_per_block=config.tokens_per_block,
        blocks_primary={w.size: w.primary for w in config.windows if w.size is not None} or first.primary,
        blocks_host={w.size: w.host for w in config.windows if w.size is not None} or first.host,
        window_sizes=sizes or None,
        max_beam_width=config.max_beam_width,
        block_reuse=config.block_reuse,
        partial_reuse=config.partial_reuse,
        copy_on_partial_reuse=config.copy_on_partial_reuse,
        offload_priority_min=config.offload_priority_min,
        host_admission=config.host_admission,
        events_max=events_max,
        hash_bits=hash_bits,
        seed=SEED,
    )


def carried(values: list[int] | tuple[int, ...], carrier: str) -> object:
    if carrier == "list":
        return list(values)
    if carrier == "tuple":
        return tuple(values)
    if carrier == "ctypes":
        return (ctypes.c_int64 * len(values))(*values)  # a buffer that does not say its strides
    return np.array(values, dtype=carrier)


def native_retention(retention: Retention) -> native.Retention | None:
    if retention == Retention():
        return None
    return native.Retention(
        [(r.begin, r.end, r.priority, r.duration_ms) for r in retention.ranges],
        retention.decode_priority,
        retention.decode_duration_ms,
    )


def native_request(request: Request, carrier: str = "list") -> native.SequenceRequest:
    return native.SequenceRequest(
        request.request_id,
        carried(request.tokens, carrier),
        beam_width=request.beam_width,
        lora_id=request.lora_id,
        salt=request.salt,
        extra_keys=request.extra_keys,
        retention=native_retention(request.retention),
    )
