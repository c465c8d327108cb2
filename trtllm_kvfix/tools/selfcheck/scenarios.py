"""What can go wrong on the installed classes, and is right with the fixes. Each answers what was wrong, or None."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, Upstream
from trtllm_kvfix.tools.selfcheck import build
from trtllm_kvfix.tools.selfcheck.ground import Ground, Table, Unavailable

V1, V2 = "KVCacheManager", "KVCacheManagerV2"
FIRST, SECOND = [1, 2], [3, 4]
LENGTH = 2 * build.TOKENS_PER_BLOCK + 6
T = build.TOKENS_PER_BLOCK


@dataclass(frozen=True)
class Scenario:
    name: str
    fix_id: str
    run: Callable[[Ground, Upstream], str | None]
    # Its fix is needed by builds that are right without it, and finds that out while it runs.
    may_be_right: bool = False


def _ships(kind: str, ground: Ground, up: Upstream) -> str | None:
    """Two batches are shipped while the stream is held: does the first get its own offsets?"""
    return _Shipping(kind, ground, up).survives()


class _Shipping:
    """A manager that dummy requests sit in, and what its offsets are shipped to."""

    def __init__(self, kind: str, ground: Ground, up: Upstream) -> None:
        cls = up.attribute(RESOURCE_MANAGER if kind == V1 else up.v2_module, kind)
        if cls is None:
            raise Unavailable(f"this TensorRT-LLM has no {kind}")
        self._ground = ground
        stream = ground.stream()
        cache = build.manager(cls, stream)
        self._stream = getattr(cache, "_stream", stream)
        ids = FIRST + SECOND
        if cache.add_dummy_requests(ids, [LENGTH] * len(ids)) is None:
            raise Unavailable("the cache has no room for four requests")
        owner = cache if hasattr(cls, "copy_batch_block_offsets") else self._metadata(up, cache)
        self._owner, self._by_metadata = owner, owner is not cache
        pools = getattr(cache, "num_attention_op_pools", cache.num_pools)
        shape = (pools, build.ROWS_MAX, 2, cache.max_blocks_per_seq)
        self._output = owner.kv_cache_block_offsets if self._by_metadata else ground.on_device(shape)
        self._seen = ground.pinned(tuple(self._output.shape))

    def _metadata(self, up: Upstream, cache: Any) -> Any:
        return build.metadata(up, cache, self._ground.lengths([LENGTH] * 2), FIRST, [LENGTH] * 2)

    def survives(self) -> str | None:
        # What is made at first uses, such as memory and kernels, would wait for the stream that is held.
        for batch in (FIRST, SECOND) * 2:
            self._ship(batch)
        own, other = self._alone(FIRST), self._alone(SECOND)
        if np.array_equal(own, other) or not own.any():
            raise Unavailable("both batches have the same offsets, so nothing can be told apart")
        with self._ground.held(self._stream):
            self._ship(FIRST)
            self._look()
            self._ship(SECOND)
        arrived = self._arrived()
        if np.array_equal(arrived, own):
            return None
        whose = "the offsets of the second" if np.array_equal(arrived, other) else "something else"
        return f"the first of two batches got {whose}"

    def _alone(self, batch: list[int]) -> Table:
        self._ship(batch)
        self._look()
        return self._arrived()

    def _ship(self, batch: list[int]) -> None:
        with self._ground.on(self._stream):
            if self._by_metadata:
                self._owner.request_ids = batch
                self._owner.prepare()
            else:
                self._owner.copy_batch_block_offsets(self._output, batch, 1, len(batch), len(batch))

    def _look(self) -> None:
        with self._ground.on(self._stream):
            self._seen.copy_(self._output, non_blocking=True)

    def _arrived(self) -> Table:
        self._stream.synchronize()
        rows: Table = self._seen.numpy()[:, : len(FIRST)].copy()
        return rows


def _requests(ground: Ground, up: Upstream, *, blocks: int) -> build.Requests:
    cls = up.attribute(RESOURCE_MANAGER, V1)
    return build.Requests(up, build.manager(cls, ground.stream(), blocks=blocks, blocks_per_seq=10, reuse=True))


def _shares_a_prompt(ground: Ground, up: Upstream) -> str | None:
    """A second request comes while the first is in the middle of the prompt that they share."""
    requests = _requests(ground, up, blocks=32)
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
    return _released(requests, free)


def _reuses_in_a_batch(ground: Ground, up: Upstream) -> str | None:
    """Of two requests that come together, the first needs the room in which the second's prefix lies."""
    requests = _requests(ground, up, blocks=14)
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
    return _released(requests, free)


def _released(requests: build.Requests, free: int) -> str | None:
    left = free - requests.free_blocks()
    return f"{left} blocks were not released" if left else None


SCENARIOS = (
    Scenario("offsets-v1", "staged-offsets-v1", partial(_ships, V1)),
    Scenario("offsets-v2", "staged-offsets-v2", partial(_ships, V2)),
    Scenario("chunks-shared", "computed-blocks", _shares_a_prompt, may_be_right=True),
    Scenario("admission-order", "batched-admission", _reuses_in_a_batch),
)
