"""A batch that reuses less than was to be had, and one that turns out larger than it was charged for (H3)."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from trtllm_kvfix.hazards.build import CountedRequests, Executor, Reached
from trtllm_kvfix.hazards.ground import Ground, NothingToShow
from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK, Requests
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import LLM_REQUEST, PY_EXECUTOR, Upstream

BLOCKS = 14  # six are kept for a prefix, and four for another prompt: six more need the room of the prefix
KEPT = range(1000, 1000 + 6 * TOKENS_PER_BLOCK)
BUDGET = 8 * TOKENS_PER_BLOCK
SCHEDULE = "PyExecutor._schedule"


def batch_of_two(requests: Requests, *, large_first: bool) -> tuple[Any, Any]:
    """A batch of (a large request, one that shares a prefix). The large one needs the blocks that hold the prefix."""
    for request_id, prompt in ((1, KEPT), (2, range(3000, 3000 + 4 * TOKENS_PER_BLOCK))):
        request = requests.make(request_id, prompt)
        requests.step([request])
        requests.finish(request)
    large = requests.make(3, range(5000, 5000 + 6 * TOKENS_PER_BLOCK))
    sharing = requests.make(4, [*KEPT, *range(7000, 7000 + TOKENS_PER_BLOCK)])
    requests.step([large, sharing] if large_first else [sharing, large])
    return large, sharing


def reuses_in_a_batch(ground: Ground, up: Upstream) -> str | None:
    requests = CountedRequests(ground, up, blocks=BLOCKS)
    large, sharing = batch_of_two(requests, large_first=True)
    reused = int(sharing.prepopulated_prompt_len)
    if reused < len(KEPT):
        return f"{reused} tokens were reused, {len(KEPT)} were to be had"
    for request in (large, sharing):
        requests.finish(request)
    return requests.released()


def fits_the_budget(ground: Ground, up: Upstream) -> str | None:
    """The second request was charged without a cached prefix, which is gone when the batch is prepared.

    The scheduler's part is played here: the first was charged four blocks, the second one block of its six.
    """
    if not up.has(LLM_REQUEST, "LlmRequest.estimated_reusable_tokens"):
        raise NothingToShow("the scheduler charges whole prompts, so reuse can only make a batch smaller")
    requests = CountedRequests(ground, up, blocks=32, max_num_tokens=BUDGET)
    both = [requests.make(1, range(1000, 1000 + BUDGET // 2)), requests.make(2, range(3000, 3000 + BUDGET * 3 // 4))]
    schedule: Any = up.attribute(PY_EXECUTOR, SCHEDULE)
    with suppress(Reached):
        schedule(_executor(requests))
    batch = requests.admit(both)
    tokens = sum(min(each.context_chunk_size, each.context_remaining_length) for each in batch.context_requests)
    if tokens > BUDGET:
        return f"a batch of {tokens} tokens was to be run, where max_num_tokens is {BUDGET}"
    requests.compute(batch)
    requests.step([each for each in both if each.context_remaining_length > 0])
    unfinished = [each.py_request_id for each in both if each.context_remaining_length > 0]
    if unfinished:
        return f"requests {unfinished} were put off and did not come back"
    for request in both:
        requests.finish(request)
    return requests.released()


def _executor(requests: Requests) -> Any:
    """An executor with the attributes that limit a batch. Prefill is not chunked: upstream's own trim needs that."""
    engine = SimpleNamespace(max_num_tokens=BUDGET, attn_runtime_features=SimpleNamespace(chunked_prefill=False))
    return Executor(resource_manager=requests.managers, model_engine=engine, dist=SimpleNamespace(pp_size=1))


SCENARIOS = (
    Scenario("admission-order", "batched-admission", reuses_in_a_batch),
    Scenario("budget", "token-budget", fits_the_budget, beside=("computed-blocks",)),
)
