"""A prompt that is not computed to its end, and a request that shares it (H8)."""

from trtllm_kvfix.hazards import build
from trtllm_kvfix.hazards.ground import Ground
from trtllm_kvfix.hazards.hazard import Scenario
from trtllm_kvfix.overlay.upstream import Upstream

T = build.TOKENS_PER_BLOCK


def shares_a_prompt(ground: Ground, up: Upstream) -> str | None:
    """A second request comes while the first is in the middle of the prompt that they share."""
    requests = build.Requests.of_a_cache(ground, up, blocks=32)
    free = requests.free_blocks()
    prompt, computed = range(100, 100 + 7 * T + 1), 2 * T
    first = requests.make(1, prompt, chunk=computed)
    requests.step([first])
    second = requests.make(2, prompt)
    requests.step([second])
    reused = int(second.prepopulated_prompt_len)
    if reused > computed:
        return f"{reused} tokens were reused, of which {computed} had been computed"
    first.context_chunk_size = first.context_remaining_length
    requests.step([first])
    for request in (second, first):
        requests.finish(request)
    return requests.released(free)


SCENARIOS = (Scenario("chunks-shared", "computed-blocks", shares_a_prompt, may_be_right=True),)
