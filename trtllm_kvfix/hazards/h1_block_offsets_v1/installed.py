"""The manager of an installed TensorRT-LLM ships two batches (H1, and H2 with the other manager)."""

from functools import partial

import numpy as np

from trtllm_kvfix.hazards.build import metadata, with_two_batches
from trtllm_kvfix.hazards.case import Comparison, Played, played
from trtllm_kvfix.hazards.ground import Ground, Table, Unavailable
from trtllm_kvfix.hazards.small import FIRST, SECOND, offsets_shape
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, Upstream

V1, V2 = "KVCacheManager", "KVCacheManagerV2"


def ships(kind: str, ground: Ground, up: Upstream) -> str | None:
    """Two batches are shipped while the stream is held: does the first get its own offsets?"""
    shipping = _Shipping(kind, ground, up)
    (own, arrived), _ = played(shipping, ground.held(shipping.stream))
    if np.array_equal(arrived, own):
        return None
    whose = "the offsets of the second" if np.array_equal(arrived, shipping.other) else "something else"
    return f"the first of two batches got {whose}"


class _Shipping(Played):
    """A manager that dummy requests sit in, and what its offsets are shipped to."""

    def __init__(self, kind: str, ground: Ground, up: Upstream) -> None:
        cls = up.attribute(RESOURCE_MANAGER if kind == V1 else up.v2_module, kind)
        if cls is None:
            raise Unavailable(f"this TensorRT-LLM has no {kind}")
        self._ground = ground
        cache, self.stream = with_two_batches(cls, ground)
        # Where attention's metadata owns the table, it ships.
        owner = cache if hasattr(cls, "copy_batch_block_offsets") else metadata(up, cache, ground)
        self._owner, self._by_metadata = owner, owner is not cache
        self._output = owner.kv_cache_block_offsets if self._by_metadata else ground.on_device(offsets_shape(cache))
        self._seen = ground.pinned(tuple(self._output.shape))

    def prepare(self) -> None:
        # Objects of first uses, such as memory and kernels, would wait for the stream that is held.
        for batch in (FIRST, SECOND) * 2:
            self._ship(batch)
        self.own, self.other = self._alone(FIRST), self._alone(SECOND)
        if np.array_equal(self.own, self.other) or not self.own.any():
            raise Unavailable("both batches have the same offsets, so no difference could show")

    def call(self) -> None:
        self._ship(FIRST)
        self._look()

    def disturb(self) -> None:
        self._ship(SECOND)

    def settle(self) -> None:
        self.stream.synchronize()

    def compare(self) -> Comparison:
        return Comparison(self.own, self._arrived())

    def _alone(self, batch: list[int]) -> Table:
        self._ship(batch)
        self._look()
        return self._arrived()

    def _ship(self, batch: list[int]) -> None:
        with self._ground.on(self.stream):
            if self._by_metadata:
                self._owner.request_ids = batch
                self._owner.prepare()
            else:
                self._owner.copy_batch_block_offsets(self._output, batch, 1, len(batch), len(batch))

    def _look(self) -> None:
        with self._ground.on(self.stream):
            self._seen.copy_(self._output, non_blocking=True)

    def _arrived(self) -> Table:
        self.settle()
        rows: Table = self._seen.numpy()[:, : len(FIRST)].copy()
        return rows


SCENARIOS = (Scenario("offsets-v1", "staged-offsets-v1", partial(ships, V1)),)
