"""A host tier that holds nothing. It sees what the scheduler does, and checks the block manager in every iteration."""

from collections.abc import Sequence

from trtllm_kvfix.native import BlockManager
from trtllm_kvfix.tools.replay.host_tier import Found, TierCounts


class Watcher:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []  # indices that were admitted together
        self.running: list[list[tuple[int, int]]] = []  # of each iteration: indices, and tokens computed before it
        self._admitted: list[int] = []

    def attach(self, manager: BlockManager) -> None:
        self.manager = manager

    def find(self, index: int, _tokens_found: int) -> Found:
        self._admitted.append(index)
        return Found()

    def step(self, running: Sequence[tuple[int, int]]) -> None:
        self.manager.check_invariants()
        self.running.append(list(running))
        if self._admitted:
            self.batches.append(self._admitted)
        self._admitted = []

    def finish(self, _indices: Sequence[int]) -> None:
        self.manager.check_invariants()

    def counted(self) -> TierCounts:
        return TierCounts(0, 0, 0)
