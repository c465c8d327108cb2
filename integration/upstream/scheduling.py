"""A scheduler for scenarios: first come, first served, within a budget of tokens, whole prompts or chunks.

Upstream's is bound; a scenario wants to choose batches itself. `estimate` says how many tokens of a prompt it believes
to be cached: one that is stale or too high makes a batch that exceeds the budget, as it does upstream.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Output(NamedTuple):
    context_requests: list[Any]
    generation_requests: list[Any]
    paused_requests: list[Any]
    fitting_disagg_gen_init_requests: list[Any]
    num_fitting_requests: int


class Scheduler:
    def __init__(self, shape: Any, states: Any) -> None:
        self.shape = shape
        self.states = states
        self.estimate: Callable[[Any], int] = lambda _: 0
        self.pause: Callable[[list[Any]], list[Any]] = lambda _: []

    def generation_cost(self, request: Any) -> int:
        return int(self.shape.beams * (1 + len(request.py_draft_tokens or [])))

    def schedule_request(self, active: list[Any], inflight: Any) -> Output:
        ready = [each for each in active if each.request_id not in inflight]
        paused = self.pause(ready)
        ready = [each for each in ready if each not in paused]
        generations = [each for each in ready if each.state == self.states.GENERATION_IN_PROGRESS]
        left = self.shape.budget - sum(self.generation_cost(each) for each in generations)
        contexts: list[Any] = []
        for request in ready:
            is_full = len(contexts) + len(generations) == self.shape.max_batch_size
            if is_full or request.state != self.states.CONTEXT_INIT:
                continue
            remaining = request.context_remaining_length
            known = self.estimate(request) if request.is_first_context_chunk else 0
            cost = max(1, remaining - known)
            if self.shape.chunked:
                take = min(cost, left, self.shape.chunk_max or left)
                if take < cost:
                    take -= (take + known) % self.shape.tokens_per_block
                if take <= 0:
                    continue
                request.context_chunk_size = take + known if take < cost else remaining
                cost = take
            elif cost > left:
                continue
            else:
                request.context_chunk_size = remaining
            left -= cost
            contexts.append(request)
        return Output(contexts, generations, paused, [], len(contexts) + len(generations))

    def can_schedule(self, _: list[Any]) -> bool:
        return True
