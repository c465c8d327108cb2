"""After admission a batch never holds more tokens than the forward step takes (H3).

The scheduler charges for the reuse that it expects; what is found when blocks are claimed may be less. Upstream then
runs into an assertion in the executor's thread. Here the excess comes off the batch, from the back: chunks get smaller
where prefill is chunked, else whole requests go back to be scheduled again, as if this iteration had not seen them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_kvfix.fixes.batches import (
    cannot_be_split,
    context_tokens,
    generation_tokens,
    replace_contexts,
)
from trtllm_kvfix.metrics import counters

log = logging.getLogger("trtllm_kvfix")


@dataclass(frozen=True)
class Limits:
    max_num_tokens: int
    chunked_prefill: bool
    tokens_per_block: int


@dataclass(frozen=True)
class Fitted:
    """What `fit` did. `tokens` is what the batch holds now."""

    trimmed: tuple[Any, ...]
    deferred: tuple[Any, ...]
    tokens: int


def fit(batch: Any, limits: Limits, *, spared: Callable[[Any], bool], contexts: list[Any] | None = None) -> Fitted:
    """Take tokens off the batch until it fits. `spared` requests are left alone and cost nothing.

    contexts: the batch's context requests in the order of their claims to the budget; by default as they stand.
    """
    contexts = list(batch.context_requests) if contexts is None else contexts
    costing = [request for request in contexts if not spared(request)]
    generations = sum(generation_tokens(request) for request in batch.generation_requests)
    tokens = generations + sum(context_tokens(request) for request in costing)
    trimmed: list[Any] = []
    deferred: list[Any] = []
    for request in reversed(costing):
        if tokens <= limits.max_num_tokens:
            break
        cost = context_tokens(request)
        if limits.chunked_prefill and _shrink(request, tokens - limits.max_num_tokens, limits.tokens_per_block):
            trimmed.append(request)
            tokens -= cost - context_tokens(request)
        elif len(deferred) + 1 < len(contexts) + len(batch.generation_requests):  # never an empty batch
            deferred.append(request)
            tokens -= cost
    if trimmed or deferred:
        left = [request for request in batch.context_requests if request not in deferred]
        replace_contexts(batch, left)
    return Fitted(tuple(trimmed), tuple(deferred), tokens)


def _shrink(request: Any, excess: int, tokens_per_block: int) -> bool:
    """Let the chunk end earlier, on a block's boundary; False where nothing would be left of it."""
    if cannot_be_split(request):
        return False
    begin = request.context_current_position
    # Drafts count with the last chunk only, so taking any token off it takes them off too.
    end = begin + min(request.context_chunk_size - 1, context_tokens(request) - excess)
    end -= end % tokens_per_block
    if end <= begin:
        return False
    request.context_chunk_size = end - begin
    return True


def tell(fitted: Fitted, limits: Limits, tokens_before: int) -> None:
    """Counts, and one line for each batch that was changed."""
    counters.budget_trims.add(len(fitted.trimmed))
    counters.budget_deferrals.add(len(fitted.deferred))
    if fitted.trimmed or fitted.deferred:
        log.info(
            "batch of %d tokens exceeds max_num_tokens %d: chunks made smaller of requests %s, put off requests %s, "
            "%d tokens left",
            tokens_before,
            limits.max_num_tokens,
            [request.py_request_id for request in fitted.trimmed],
            [request.py_request_id for request in fitted.deferred],
            fitted.tokens,
        )
    if fitted.tokens > limits.max_num_tokens:
        counters.budget_overruns.add()
        log.error(
            "batch of %d tokens exceeds max_num_tokens %d and nothing more can be put off; usual cause: generation "
            "requests alone, or one request whose prompt and drafts are larger than the limit without chunked prefill",
            fitted.tokens,
            limits.max_num_tokens,
        )


def batch_tokens(batch: Any, spared: Callable[[Any], bool]) -> int:
    contexts = sum(context_tokens(request) for request in batch.context_requests if not spared(request))
    return contexts + sum(generation_tokens(request) for request in batch.generation_requests)
