"""Upper bounds of reuse: that of a clairvoyant cache of each size, and that of a cache without limit.

Both see the requests in the order of the trace and hold whatever any request before has computed, at once. The
unlimited one serves the longest prefix that a prompt shares with anything before: that is the ceiling, exactly.

The clairvoyant one holds a number of blocks, in whatever tier, and knows every request to come. A block that is held
from one request to the next that asks for it is an interval that takes one slot and brings one block, so the best
choice is Belady's: whenever too many overlap, give up those that are asked for last. No request asks for a block
without those before it, so giving up the latest never breaks a prefix. This counts whole blocks. Beyond them a request
may find part of one more, so each gets the most that a part can be. Hence a bound: up to tokens_per_block - 1 tokens a
request too high.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.tools.replay.contents import Content, common_lengths, evened, runs_of

Ints = NDArray[np.int64]


class Reusable(NamedTuple):
    """Prompt tokens."""

    ceiling: int
    clairvoyant: list[int]  # for each number of blocks that was asked about


class _Uses(NamedTuple):
    """Blocks that are alike, as intervals: from a request that has them to the next that asks for them."""

    requests: int
    begin: Ints
    end: Ints
    blocks: Ints


def reusable(contents: Sequence[Content], tokens_per_block: int, sizes: Sequence[int]) -> Reusable:
    common = common_lengths(contents)
    prompts = np.array([content.prompt_length for content in contents], np.int64)
    # The last token of a prompt is always computed.
    ceiling = int(np.minimum(common, prompts - 1).sum())
    parts = int(np.minimum(common, tokens_per_block - 1).sum())
    uses = _uses_of(contents, tokens_per_block)
    whole = [tokens_per_block * _most_found(uses, size) for size in sizes]
    return Reusable(ceiling, [min(ceiling, tokens + parts) for tokens in whole])


def _uses_of(contents: Sequence[Content], tokens_per_block: int) -> _Uses:
    runs = evened(runs_of(contents, tokens_per_block))
    prompt_blocks = np.array([content.prompt_length // tokens_per_block for content in contents], np.int64)
    is_asked_for = runs.first < prompt_blocks[runs.content]
    order = np.argsort(runs.keys, kind="stable")
    before, after = order[:-1], order[1:]
    is_use = (runs.keys[before] == runs.keys[after]) & is_asked_for[after]
    begin, end = runs.content[before[is_use]], runs.content[after[is_use]]
    distinct, which = np.unique(begin * len(contents) + end, return_inverse=True)
    blocks = np.zeros(len(distinct), np.int64)
    np.add.at(blocks, which, runs.blocks[after[is_use]])
    return _Uses(len(contents), distinct // len(contents), distinct % len(contents), blocks)


def _most_found(uses: _Uses, size: int) -> int:
    """Blocks: Belady's choice, request by request."""
    found = used = 0
    ending = [0] * uses.requests  # blocks held until this request
    latest: list[int] = []  # a heap of requests for which some are held, the last on top
    starts = np.searchsorted(uses.begin, np.arange(uses.requests + 1)).tolist()
    ends, counts = uses.end.tolist(), uses.blocks.tolist()
    for now in range(uses.requests):
        found += ending[now]
        used -= ending[now]
        for at in range(starts[now], starts[now + 1]):
            if not ending[ends[at]]:
                heappush(latest, -ends[at])
            ending[ends[at]] += counts[at]
            used += counts[at]
        while used > size:
            last = -latest[0]
            given_up = min(ending[last], used - size)
            ending[last] -= given_up
            used -= given_up
            if not ending[last]:
                heappop(latest)
    return found
