"""Admission one by one, in the order that loses least (H3).

Where the bound manager cannot add a batch, every allocation may evict what a later request of the batch was to reuse.
The requests that allocate least go first, so matches are claimed before the large allocations come. What was really
reused is then on the requests, exact, for the budget that follows.
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.fixes.batches import line_up, replace_contexts
from trtllm_kvfix.metrics import counters


def ordered_admission(original: Callable[..., Any]) -> Callable[..., Any]:
    """For `KVCacheManager.prepare_resources` of versions that call `add_sequence` in the order of the batch."""

    def prepare_resources(self: Any, scheduled_batch: Any) -> Any:
        scheduled = list(scheduled_batch.context_requests)
        # A draft's manager follows the target's, whose reuse is what counts.
        if not scheduled or self.is_draft:
            return original(self, scheduled_batch)
        entering = [request for request in scheduled if request.is_first_context_chunk]
        expected = {request.py_request_id: expected_reuse(self, request) for request in entering}
        if len(entering) > 1 and self.enable_block_reuse:
            line_up(scheduled_batch, _least_first(scheduled, expected))
        try:
            result = original(self, scheduled_batch)
        finally:
            left = {request.py_request_id for request in scheduled_batch.context_requests}
            replace_contexts(scheduled_batch, [request for request in scheduled if request.py_request_id in left])
        measure(scheduled_batch.context_requests, expected)
        return result

    return prepare_resources


def expected_reuse(manager: Any, request: Any) -> int:
    """Tokens that the request would find now, by whatever the bound manager can tell, or what the scheduler charged."""
    estimate = int(getattr(request, "estimated_reusable_tokens", 0))
    if not manager.enable_block_reuse:
        return 0
    impl = manager.impl
    if hasattr(impl, "count_reusable_blocks"):
        return int(impl.count_reusable_blocks(_unique_tokens(request), request, False) * manager.tokens_per_block)
    if hasattr(impl, "find_new_context_block"):
        first_new = impl.find_new_context_block(_unique_tokens(request), request)
        return _tokens_before(first_new, request, manager.tokens_per_block, estimate)
    return estimate


def measure(requests: Any, expected: dict[int, int]) -> None:
    """Of the requests that entered: what was found, and what was expected and had gone."""
    for request in requests:
        promised = expected.get(request.py_request_id)
        if promised is not None:
            reused = int(request.prepopulated_prompt_len)
            counters.reused_tokens.add(reused)
            counters.reuse_lost_tokens.add(max(0, promised - reused))


def _least_first(scheduled: list[Any], expected: dict[int, int]) -> list[Any]:
    """Stable: equals keep the scheduler's order. Requests that are past their first chunk allocate nothing."""

    def tokens_to_allocate(request: Any) -> int:
        reuse = expected.get(request.py_request_id)
        return 0 if reuse is None else int(request.prompt_len) - reuse

    return sorted(scheduled, key=tokens_to_allocate)


def _unique_tokens(request: Any) -> Any:
    return request.get_unique_tokens(0) if hasattr(request, "get_unique_tokens") else request.get_tokens(0)


def _tokens_before(first_new: Any, request: Any, tokens_per_block: int, estimate: int) -> int:
    """Where the first block that is not cached begins. None: every block is there."""
    prompt = list(request.get_tokens(0))[: request.prompt_len]
    if first_new is None:
        return len(prompt) - len(prompt) % tokens_per_block
    wanted = [getattr(token, "token_id", token) for token in getattr(first_new, "unique_tokens", first_new)]
    for begin in range(0, len(prompt), tokens_per_block):
        if prompt[begin : begin + tokens_per_block] == wanted:
            return begin
    return estimate
