"""Random traffic on the ranks of one model: the same on each, while now this rank is slow and now that one fails."""

from collections.abc import Collection
from zlib import crc32

from trtllm_kvfix.native import TransferLane
from trtllm_kvfix.ranks import Ranks

from .conftest import Bench
from .faults import Enqueue, heal, replace_enqueue, transfers_of
from .test_traffic import Traffic

HOLD_EVERY_STEPS, HOLD_STEPS = 48, 6
CHECK_EVERY_STEPS = 16


class RankTraffic(Traffic):
    """Every rank draws the same at random, though it concerns one."""

    def __init__(self, bench: Bench, ranks: Ranks, requests: int) -> None:
        super().__init__(bench, seed=5)
        self.ranks, self.requests = ranks, requests
        self.decisions = 0  # a checksum over what every step did
        self.held = self.failed = 0  # on this rank
        self._hold_until: int | None = None
        self._gate: int | None = None
        bench.executor.idle = self.idle
        transfers = transfers_of(bench)
        wait_for = transfers.wait_for

        def let_go_and_wait_for(jobs: Collection[int]) -> None:
            self.let_go()
            wait_for(jobs)

        transfers.wait_for = let_go_and_wait_for  # type: ignore[method-assign]

    def serve(self) -> None:
        self.turn()
        self.bench.executor.run(self.between)
        self.bench.settle()

    def between(self, step: int) -> None:
        executor = self.bench.executor
        active = [(one.request_id, one.state.name, one.tokens, one.context_current_position) for one in executor.active]
        self.decisions = crc32(repr((executor.loaded_tokens, active)).encode(), self.decisions)
        while self.number < self.requests and len(executor.waiting) < 3 and len(self.open) < 10:
            self.turn()
        self.collect()
        self.hold(step)
        if self._hold_until is not None:
            return
        if executor.scheduled:
            self.disturb()
        if step % CHECK_EVERY_STEPS == 0:
            executor.check_reads()

    def hold(self, step: int) -> None:
        """Now and then the stream of one rank stands still for some steps, and its copies with it."""
        executor = self.bench.executor
        if self._hold_until is not None and (step == self._hold_until or not (executor.waiting or executor.active)):
            self._hold_until = None
            self.let_go()
        turn, since = divmod(step, HOLD_EVERY_STEPS)
        if since == 0 and executor.active:
            self._hold_until = step + HOLD_STEPS
            if turn % self.ranks.size == self.ranks.rank:
                self._gate = self.bench.device.close_gate(executor.stream)
                self.held += 1

    def let_go(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            self.bench.device.open_gate(gate)

    def idle(self) -> None:
        if self._hold_until is None:  # else there is nothing to wait for
            self.bench.wait_for_a_transfer()

    def fail_next_transfer(self) -> None:
        chosen, direction = self.random.randrange(self.ranks.size), self.random.choice(("store", "load"))
        if chosen == self.ranks.rank:
            self.failed += 1
            self.plant(direction)

    def plant(self, direction: str) -> None:
        """On a GPU a copy to where no memory is would take the whole context with it; there it is refused."""
        if self.bench.device.simulated:
            super().plant(direction)
            return

        def make(_lane: TransferLane, _enqueue: Enqueue) -> Enqueue:
            def refuse(*_arguments: object, **_options: object) -> str:
                heal(self.bench)
                return "full"

            return refuse

        heal(self.bench)
        replace_enqueue(self.bench, direction, make)
