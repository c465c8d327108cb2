"""The room that a request takes in the primary pool, at most, and those that never have it."""

from collections.abc import Sequence

from trtllm_kvfix.tools.replay.outcome import CacheShape
from trtllm_kvfix.tools.replay.trace import TraceRequest


def blocks_reserved_for(request: TraceRequest, shape: CacheShape) -> int:
    """Blocks of prompt and answer, plus one: the source of a partial reuse must stay beside its copy."""
    tokens = request.input_length + max(request.output_length - 1, 0)
    return -(-tokens // shape.tokens_per_block) + 1


def refused(requests: Sequence[TraceRequest], shape: CacheShape) -> list[int]:
    """Indices of those that are too large for the pool by themselves."""
    return [
        index for index, request in enumerate(requests) if blocks_reserved_for(request, shape) > shape.blocks_primary
    ]
