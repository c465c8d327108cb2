"""Advisory answers about what a prompt would reuse: a snapshot that the later claim need not confirm (surface 4.4).

They take what `request.get_unique_tokens` gives. Those of B and B2 assert that windows do not vary.
"""

from dataclasses import dataclass
from typing import Any

from trtllm_kvfix import native

from .core import BoundCore


@dataclass(frozen=True)
class PrefixReuseSummary:
    """Surface 4.1."""

    reusable_blocks_allocated: int
    reusable_blocks_all: int
    total_matched_tokens: int


def analyze_prefix_reuse(self: BoundCore, unique_tokens: Any, llm_request: Any) -> PrefixReuseSummary:
    request = native.SequenceRequest(
        llm_request.request_id,
        [token.token_id for token in unique_tokens],
        lora_id=llm_request.lora_task_id,
        salt=llm_request.cache_salt_id,
    )
    found = self.native.analyze_prefix_reuse(request)
    return PrefixReuseSummary(
        reusable_blocks_allocated=found.blocks_primary,
        reusable_blocks_all=found.blocks_primary + found.blocks_host,
        total_matched_tokens=found.tokens,
    )


def count_reusable_blocks(
    self: BoundCore,
    unique_tokens: Any,
    llm_request: Any,
    only_allocated: bool = True,
) -> int:
    _refuse_variable_windows(self)
    summary = analyze_prefix_reuse(self, unique_tokens, llm_request)
    return (
        summary.reusable_blocks_allocated if only_allocated else summary.total_matched_tokens // self.tokens_per_block
    )


@dataclass(frozen=True, eq=False)
class BlockKey:
    """Of all blocks up to the one that is missing, that one included."""

    unique_tokens: list[Any]


def find_new_context_block(self: BoundCore, unique_tokens: Any, llm_request: Any) -> BlockKey | None:
    """None: every full block of these tokens is there."""
    known = count_reusable_blocks(self, unique_tokens, llm_request, False)
    end = (known + 1) * self.tokens_per_block
    return BlockKey(list(unique_tokens)[:end]) if end <= len(unique_tokens) else None


def _refuse_variable_windows(self: BoundCore) -> None:
    if self.is_variable_window:
        raise RuntimeError("Assertion failed: several windows")
