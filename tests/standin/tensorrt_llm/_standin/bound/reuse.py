"""An advisory answer about what a prompt would reuse: a snapshot, which a later claim need not confirm."""

from dataclasses import dataclass
from typing import Any

from trtllm_kvfix import native

from ..extension import bound as extension
from ..nanobind import bound
from .core import BoundCore


@dataclass(frozen=True)
class PrefixReuseSummary:
    """Surface 4.1."""

    reusable_blocks_allocated: int
    reusable_blocks_all: int
    total_matched_tokens: int


@bound
def analyze_prefix_reuse(self: BoundCore, unique_tokens: Any, llm_request: Any) -> PrefixReuseSummary:
    """Takes what `request.get_unique_tokens` gives, and no ints."""
    if not all(isinstance(each, extension.UniqueToken) for each in unique_tokens):
        raise TypeError("analyze_prefix_reuse(): incompatible function arguments: UniqueToken is expected")
    request = native.SequenceRequest(
        llm_request.request_id,
        [each.token_id for each in unique_tokens],
        lora_id=llm_request.lora_task_id,
        salt=llm_request.cache_salt_id,
    )
    found = self.native.analyze_prefix_reuse(request)
    return PrefixReuseSummary(
        reusable_blocks_allocated=found.blocks_primary,
        reusable_blocks_all=found.blocks_primary + found.blocks_host,
        total_matched_tokens=found.tokens,
    )
