"""D's answer to admission that overshoots: chunks shrink, requests are never deferred (surface 1.9)."""

import logging
from typing import Any

logger = logging.getLogger("tensorrt_llm")


def kv_block_budget_applies(self: Any) -> bool:
    """The exact-type trap: a subclass that somebody makes answers no (surface 1.5)."""
    from ..._torch.pyexecutor.resource_manager import KVCacheManager  # noqa: PLC0415  that module imports this one

    return type(self) is KVCacheManager


def maybe_fit_token_budget(self: Any, scheduled_batch: Any) -> None:
    if not self.is_draft and scheduled_batch.context_requests:
        self.fit_token_budget(scheduled_batch)


def fit_token_budget(self: Any, scheduled_batch: Any) -> None:
    excess = sum(map(request_forward_tokens, scheduled_batch.all_requests())) - self.max_num_tokens
    if excess <= 0:
        return
    if not self.enable_chunked_prefill:
        logger.warning("%d tokens over max_num_tokens (%d), and prefill is not chunked", excess, self.max_num_tokens)
        return
    contexts = list(scheduled_batch.context_requests)
    for request in reversed(contexts):
        if excess > 0 and not request.is_disagg_generation_init_state:
            excess -= shrink_context_chunk(self, request, excess)
    scheduled_batch.reset_context_requests(contexts)


def request_forward_tokens(request: Any) -> int:
    if request.is_context_init_state:
        drafts = len(request.py_draft_tokens) if request.is_last_context_chunk else 0
        return int(min(request.context_chunk_size, request.context_remaining_length)) + drafts
    return int(request.sampling_config.beam_width) * (1 + len(request.py_draft_tokens))


def shrink_context_chunk(self: Any, request: Any, excess: int) -> int:
    """To a block's end, and to no less than one block. Returns the tokens saved."""
    begin, before = request.context_current_position, request_forward_tokens(request)
    end = begin + request.context_chunk_size - excess
    first_end = begin - begin % self.tokens_per_block + self.tokens_per_block
    end = max(end - end % self.tokens_per_block, first_end)
    request.context_chunk_size = min(end - begin, request.context_chunk_size)
    return before - request_forward_tokens(request)
