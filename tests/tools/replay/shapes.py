"""Caches and workloads that several tests of the replay share."""

from pathlib import Path

import numpy as np

from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.outcome import CacheShape
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest, read_trace

TINY = Path(__file__).parent / "tiny.jsonl"


def shape(
    *,
    blocks_primary: int = 128,
    blocks_host: int = 0,
    max_batch_size: int = 1,
    max_num_tokens: int = 4096,
    tokens_per_iteration: int = 1,
    iteration_ms: float = 0,
    bytes_per_block: int | None = None,
) -> CacheShape:
    return CacheShape(
        tokens_per_block=32,
        blocks_primary=blocks_primary,
        blocks_host=blocks_host,
        bytes_per_block=bytes_per_block,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        tokens_per_iteration=tokens_per_iteration,
        iteration_ms=iteration_ms,
    )


def tiny_workload() -> Workload:
    return workload(read_trace(TINY).requests)


def workload(requests: list[TraceRequest]) -> Workload:
    return Workload("test", requests, TokenBook(requests))


def cold(line: int, tokens: int, answer: int = 1, at_ms: float = 0) -> TraceRequest:
    """A request that shares nothing with others of a different line."""
    return TraceRequest(
        line, tokens, answer, at_ms, tokens=np.arange(line * 10_000, line * 10_000 + tokens, dtype=np.int32)
    )
