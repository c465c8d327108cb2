"""A batch whose first request needs the blocks in which the second one's prefix is cached (H3)."""

from trtllm_kvfix.hazards import build
from trtllm_kvfix.hazards.ground import Ground
from trtllm_kvfix.overlay.upstream import Upstream

T = build.TOKENS_PER_BLOCK


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
