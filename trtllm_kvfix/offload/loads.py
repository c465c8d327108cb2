"""Loads on the scheduler side: what the host tier adds to a prompt, pinned from the promise until it has arrived.

Upstream asks once a request has room, and tells where; or, the newest of it, reserves while it schedules
(offload/reservations.py).
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.in_use import InUse
from trtllm_kvfix.offload.plan import Ended, LoadJob, NextStep
from trtllm_kvfix.offload.requests import LiveRequest, PendingLoad
from trtllm_kvfix.offload.reservations import Reservations


class Loads:
    """The executor's thread alone uses it."""

    def __init__(self, tokens_per_block: int, blocks_min: int, next_step: NextStep, in_use: InUse) -> None:
        self.reservations = Reservations(tokens_per_block)
        self._tokens_per_block = tokens_per_block
        self._blocks_min = blocks_min
        self._next = next_step
        self._in_use = in_use
        self._running: dict[int, tuple[LoadJob, PendingLoad]] = {}  # not ended on all ranks

    def find(self, live: LiveRequest, num_computed_tokens: int) -> PendingLoad | None:
        # Never the block with the last token, which is always computed.
        live.index_blocks((live.length - 1) // self._tokens_per_block)
        held = live.index.held(live.sequence)
        first = num_computed_tokens // self._tokens_per_block
        gained = held * self._tokens_per_block - num_computed_tokens
        if held - first < self._blocks_min or gained <= 0:
            return None
        return PendingLoad(live.index.pin(live.sequence, first, held), first, num_computed_tokens, gained)

    def place(self, live: LiveRequest, load: PendingLoad, job: int) -> None:
        """The blocks of the request are known, and may be fewer than it was promised."""
        load.job = job
        slots = tuple(load.slots[: max(live.allocated - load.first, 0)])
        end = load.first + len(slots)
        # The device may have a part of the first block, which is written whole: a load that fails takes it along.
        position = load.first * self._tokens_per_block
        until = end * self._tokens_per_block if load.is_short else None
        self.plan(LoadJob(job, live.request_id, live.part(load.first, end), slots, position, until=until), load)

    def plan(self, job: LoadJob, load: PendingLoad) -> None:
        self._running[job.job] = job, load
        self._in_use.add(job)
        self._next.loads.append(job)

    def accept(self, accepted: Any, number: Callable[[], int]) -> None:
        """One that was reserved, of which upstream may tell more than once."""
        planned = self.reservations.accept(accepted, number)
        if planned is not None:
            self.plan(*planned)

    def take_back(self, reservation_id: int, start: int, end: int) -> None:
        job = self.reservations.release(reservation_id, start, end)
        if job in self._running:
            self._next.taken_back.append(job)

    def empty(self, request_id: int) -> None:
        """No load of the request begins that has not been told."""
        for planned, empty in self._next.empty_loads(request_id):
            self._in_use.remove(planned)
            self._running[planned.job] = empty, self._running[planned.job][1]

    def end(self, ended: Ended, index: TierIndex) -> tuple[LoadJob, PendingLoad]:
        job, load = self._running.pop(ended.job)
        self._in_use.remove(job)
        index.condemn(ended.bad_slots)
        index.unpin(load.slots)
        self.reservations.forget(load)
        return job, load
