"""Scenarios of admission: the blocks that requests find in the cache when they come in (H3, H8)."""

from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.tools.selfcheck import build
from trtllm_kvfix.tools.selfcheck.ground import Ground

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


def reuses_in_a_batch(ground: Ground, up: Upstream) -> str | None:
    """Two requests come together, and the first needs the blocks in which the second's prefix is cached."""
    requests = build.Requests.of_a_cache(ground, up, blocks=14)
    free = requests.free_blocks()
    kept = range(1000, 1000 + 6 * T)
    for request_id, prompt in ((1, kept), (2, range(3000, 3000 + 4 * T))):
        request = requests.make(request_id, prompt)
        requests.step([request])
        requests.finish(request)
    large = requests.make(3, range(5000, 5000 + 6 * T))
    sharing = requests.make(4, [*kept, *range(7000, 7000 + T)])
    requests.step([large, sharing])
    reused = int(sharing.prepopulated_prompt_len)
    if reused < len(kept):
        return f"{reused} tokens were reused, {len(kept)} were to be had"
    for request in (large, sharing):
        requests.finish(request)
    return requests.released(free)
