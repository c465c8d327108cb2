"""The canary beside upstream's V1 manager, in a server of a scenario: digests of blocks that have names for bytes.

A look stands where it was made, behind the batches that were launched before and in front of later ones.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from integration.upstream.engine import Batch, Engine
from integration.upstream.server import Server
from tests.torture.v2_watched import Ring
from trtllm_kvfix.canary.canary import CanaryReport
from trtllm_kvfix.managers import watched_v1
from trtllm_kvfix.managers.watched_v1 import WatchedV1
from trtllm_kvfix.managers.watching import ATTRIBUTE


class LookedAt(Engine):
    """Its batches and the canary's looks, in the order in which they were given to the device."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.enqueued: deque[Batch | Callable[[], None]] = deque()
        self.launched = 0
        self.wrong_writes: list[int] = []  # batches that have written into a complete block of somebody else's

    def enqueue(self, look: Callable[[], None], _: Any = None) -> None:
        self.enqueued.append(look)
        self._run_looks()

    def forward(self, *args: Any, **given: Any) -> dict[str, Any]:
        outputs = super().forward(*args, **given)
        self.launched += 1
        self.enqueued.append(outputs["batch"])
        return outputs

    def ran(self, batch: Batch) -> None:
        complete = {
            place[:2] for place in self.contents.values
            if all((*place[:2], offset) in self.contents.values for offset in range(self.contents.tokens_per_block))
        }  # fmt: skip
        super().ran(batch)
        assert self.enqueued.popleft() is batch
        for step in batch.steps:
            for window, slots in step.slots.items():
                ((pool, _, per_slot),) = self.pools()
                right = [offset // per_slot for offset in batch.expected[pool, batch.rows[step.request_id]]]
                for place in range(step.begin // self.contents.tokens_per_block, len(right)):
                    if slots[place] != right[place] and (window, slots[place]) in complete:
                        self.wrong_writes.append(self.launched)
        self._run_looks()

    def _run_looks(self) -> None:
        while self.enqueued and not isinstance(self.enqueued[0], Batch):
            self.enqueued.popleft()()  # type: ignore[operator]

    def digest(self, slots: Sequence[int]) -> list[bytes]:
        ((_, window, _),) = self.pools()
        size, values = self.contents.tokens_per_block, self.contents.values
        contents = [tuple(values.get((window, slot, offset)) for offset in range(size)) for slot in slots]
        return [(hash(each) & (1 << 63) - 1).to_bytes(8, "little") * self.layers for each in contents]

    layers = 0


class WatchedServer(Server):
    engine_class = LookedAt

    @property
    def watched(self) -> WatchedV1:
        found: WatchedV1 = vars(self.manager)[ATTRIBUTE]
        return found

    @property
    def report(self) -> CanaryReport:
        return self.watched.canary.report()


@contextmanager
def watching(server: WatchedServer) -> Iterator[None]:
    """The canary asks the engine's blocks for their digests, and no device."""
    engine: Any = server.engine
    engine.layers = server.shape.layers

    def digest_ring(_stream: int, _pools: Any, places: int, _key: int) -> Any:
        return Ring(engine.enqueue, engine.digest, lambda: None, places)

    def nothing(*_: Any) -> int:
        return 0

    device = SimpleNamespace(
        name="blocks with names", has_kernels=True, digest_ring=digest_ring, create_event=nothing,
        destroy_event=nothing, record=nothing, make_wait=nothing,
    )  # fmt: skip
    place = partial(SimpleNamespace, device=device, stream=0)
    with mock.patch.object(watched_v1, "current_place", place):
        yield
