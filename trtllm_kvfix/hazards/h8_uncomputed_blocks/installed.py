"""A prompt that is not computed to its end, and a request that shares it (H8)."""

from typing import Any

from trtllm_kvfix.hazards.build import CountedRequests
from trtllm_kvfix.hazards.ground import Ground
from trtllm_kvfix.hazards.hazard import Scenario
from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK, Requests
from trtllm_kvfix.overlay.upstream import Upstream

PROMPT = range(100, 100 + 7 * TOKENS_PER_BLOCK + 1)
CHUNK = 2 * TOKENS_PER_BLOCK


def two_with_a_prompt(requests: Requests, computed: int) -> tuple[Any, Any]:
    """A second request comes when `computed` tokens of the prompt that both have are computed."""
    first, second = requests.make(1, PROMPT, chunk=computed), requests.make(2, PROMPT)
    requests.step([first])
    requests.step([second])
    return first, second


def shares_a_prompt(ground: Ground, up: Upstream) -> str | None:
    requests = CountedRequests(ground, up, blocks=32)
    first, second = two_with_a_prompt(requests, CHUNK)
    reused = int(second.prepopulated_prompt_len)
    if reused > CHUNK:
        return f"{reused} tokens were reused, of which {CHUNK} had been computed"
    first.context_chunk_size = first.context_remaining_length
    requests.step([first])
    for request in (second, first):
        requests.finish(request)
    return requests.released()


SCENARIOS = (Scenario("chunks-shared", "computed-blocks", shares_a_prompt, may_be_right=True),)
