"""A prompt that matches in part a block on the host, where room has to be made on the device (H17).

Two requests with the same beginning arrive together, so each computes it for itself. The first to end leaves its block
in the tree, and what the other has computed hangs below that block. So the block is not held, and is older than its
child, which is: it goes to the host first, and there it is the first to go. How many other requests it takes until then
depends on the build, so each number is tried.
"""

from typing import Any

from trtllm_kvfix.hazards.build import CountedRequests
from trtllm_kvfix.hazards.ground import Ground
from trtllm_kvfix.hazards.small import TOKENS_PER_BLOCK, Requests
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import Upstream

T = TOKENS_PER_BLOCK
BEGINNING = range(1000, 1000 + T)
BLOCKS = 10  # of the device, which a whole sequence fits: or else upstream takes the rest for a window that slides


def block_bytes(cache: Any) -> int:
    block = cache.impl.get_unique_primary_pool()[0]
    return int(block.numel() * block.element_size())


def play(requests: Requests, others: int) -> tuple[int, bool]:
    """How many tokens a request reuses that begins like both, and whether its block is the one that it matched.

    A block below which another hangs can only be copied, into a block of the request's own.
    """
    first, twin = requests.make(1, [*BEGINNING, 1]), requests.make(2, [*BEGINNING, *range(2000, 2000 + T), 2])
    requests.step([first, twin])
    matched = requests.cache.get_cache_indices(first)[0]
    requests.finish(first)
    for at in range(others):
        other = requests.make(10 + at, range(3000 + at * T, 3000 + at * T + T))
        requests.step([other])
        requests.finish(other)
    last = requests.make(3, [*BEGINNING[: T // 2], 3, 4])
    requests.step([last])
    found = int(last.prepopulated_prompt_len), requests.cache.get_cache_indices(last)[0] == matched
    for request in (last, twin):
        requests.finish(request)
    return found


def copies_what_it_matched(ground: Ground, up: Upstream) -> str | None:
    bytes_on_host = block_bytes(CountedRequests(ground, up, blocks=BLOCKS).cache)
    for others in range(BLOCKS):
        requests = CountedRequests(ground, up, blocks=BLOCKS, host_cache_size=bytes_on_host)
        reused, is_the_match = play(requests, others)
        if reused and is_the_match:
            return f"{reused} tokens were reused from a block on the host, into which another had been moved"
        left = requests.released()
        if left:
            return left
    return None


SCENARIOS = (Scenario("partial-copies", "partial-copies", copies_what_it_matched),)
