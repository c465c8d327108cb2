"""Loads on the scheduler side: what the host tier adds to a prompt, pinned from the promise until it has arrived.

Upstream asks when a request has room, and reports where its blocks lie. The newest builds reserve while they schedule
instead (offload/reservations.py).
"""

from collections.abc import Collection
from typing import Any

from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.ledger import InUse, JobState, Ledger
from trtllm_kvfix.offload.plan import Ended, FetchJob, LoadJob
from trtllm_kvfix.offload.requests import LiveRequest, PendingLoad
from trtllm_kvfix.offload.reservations import Reservations


class Loads:
    """The executor's thread alone uses it."""

    def __init__(self, tokens_per_block: int, blocks_min: int, ledger: Ledger, in_use: InUse) -> None:
        self.reservations = Reservations(tokens_per_block, ledger)
        self._tokens_per_block = tokens_per_block
        self._blocks_min = blocks_min
        self._ledger = ledger
        self._in_use = in_use

    def find(self, live: LiveRequest, num_computed_tokens: int) -> PendingLoad | None:
        # Never the block with the last token, which is always computed.
        live.index_blocks((live.length - 1) // self._tokens_per_block)
        held = live.index.held(live.sequence)
        first = num_computed_tokens // self._tokens_per_block
        gained = held * self._tokens_per_block - num_computed_tokens
        if held - first < self._blocks_min or gained <= 0:
            return None
        return PendingLoad(live.index.pin(live.sequence, first, held), first, num_computed_tokens, gained)

    def place(self, live: LiveRequest, load: PendingLoad) -> None:
        """Plan the load: the request's blocks are known, and may be fewer than it was promised."""
        load.job = self._ledger.next_number()
        slots = tuple(load.slots[: max(live.allocated - load.first, 0)])
        end = load.first + len(slots)
        # The device may have a part of the first block, which is written whole: a failed load loses this part, too.
        position = load.first * self._tokens_per_block
        until = end * self._tokens_per_block if load.is_short else None
        self.plan(LoadJob(load.job, live.request_id, live.part(load.first, end), slots, position, until=until), load)

    def plan(self, job: LoadJob, load: PendingLoad) -> None:
        self._in_use.add(job)
        self._ledger.plan(job, load)
        if load.is_outdated and job.slots:
            self._ledger.outdate(job.number)

    def plan_forgotten(self, waiting: Collection[int], live: Collection[int]) -> None:
        """A request may end between the promise of its load and the report of its blocks, and then it has none.

        Upstream waits for the load all the same: for one that brings nothing.
        """
        forgotten = set(waiting).difference(live)
        if forgotten:
            coming = [*self._ledger.of(LoadJob), *self._ledger.of(FetchJob)]
            forgotten.difference_update(record.job.request_id for record in coming)
        for request_id in sorted(forgotten):
            number = self._ledger.next_number()
            self.plan(LoadJob(number, request_id, (), (), 0), PendingLoad([], 0, 0, 0, job=number))

    def let_go_of_promise(self, live: LiveRequest) -> None:
        """The request has ended, or begins again. What is on its way to it stays until it has arrived."""
        if live.load is not None and live.load.job is None:
            self.reservations.forget(live.load)
            live.let_go_of_load()

    def accept(self, accepted: Any) -> None:
        """Plan a load that was reserved; upstream may report it more than once."""
        planned = self.reservations.accept(accepted)
        if planned is not None:
            self.plan(*planned)

    def take_back(self, reservation_id: int, start: int, end: int) -> None:
        job = self.reservations.release(reservation_id, start, end)
        if job is not None:
            self._ledger.take_back(job)

    def outdate(self) -> None:
        """The weights have changed. What is on its way, or has not been heard of by all ranks, is worth nothing."""
        for record in self._ledger.of(LoadJob):
            if record.job.slots and record.written is not JobState.ENDED_EVERYWHERE:
                self._ledger.outdate(record.number)

    def empty(self, request_id: int) -> None:
        """A load of the request that was not sent does not begin. Upstream waits for it, so it is sent all the same."""
        for record in self._ledger.planned(request_id, LoadJob):
            load = record.job
            assert isinstance(load, LoadJob)
            self._in_use.remove(load)
            record.job = load._replace(blocks=(), slots=())

    def end(self, job: LoadJob, load: PendingLoad, ended: Ended, index: TierIndex) -> None:
        self._in_use.remove(job)
        index.condemn(ended.bad_slots)
        index.unpin(load.slots)
