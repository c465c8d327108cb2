"""Prefixes that upstream reserves while it schedules, before it knows whether the request gets room.

The newest KVCacheManagerV2 does so. From `reserve_prefix` on, the reserved blocks of the host tier stay, whole or in
part, until upstream has released all of them. Upstream names what it accepts in the report of the step, and the load
begins with that step; until then it may still take it back. An accepted load is over when every rank says so.

Upstream continues behind the tokens that it was promised, as with other loads. If they did not come, the request gives
its cache back and computes its prompt.
"""

from typing import Any

from trtllm_kvfix.offload.layout import blocks_by_group
from trtllm_kvfix.offload.ledger import Ledger
from trtllm_kvfix.offload.plan import LoadJob
from trtllm_kvfix.offload.requests import LiveRequest, PendingLoad, part_of


class Reservations:
    """The executor's thread alone uses it. Keyed by upstream's number of the reservation."""

    def __init__(self, tokens_per_block: int, ledger: Ledger) -> None:
        self._tokens_per_block = tokens_per_block
        self._ledger = ledger  # has those that were accepted
        self._promised: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._promised)

    def add(self, reservation_id: int, live: LiveRequest) -> None:
        assert live.load is not None
        live.load.reservation = reservation_id
        self._promised[reservation_id] = live

    def release(self, reservation_id: int, start: int, end: int) -> int | None:
        """Release tokens `start` to `end`: all, or the part at one end. If upstream takes back what it has accepted,
        returns the job that must not begin any more."""
        live = self._promised.get(reservation_id)
        load = live.load if live is not None else None
        if live is None or load is None:  # accepted; or it ended with its request, or has been loaded
            accepted = self._ledger.load_of(reservation_id)
            return None if accepted is None else accepted.number
        kept = (end, load.end) if start <= load.position else (load.position, start)
        self._keep(live, load, *kept)
        if load.tokens == 0:
            del self._promised[reservation_id]
            live.load = None
        return None

    def accept(self, accepted: Any) -> tuple[LoadJob, PendingLoad] | None:
        """The load that a report names, or nothing if it was reported before. If the promise ended with its request,
        the load brings nothing: upstream waits for its end."""
        if self._ledger.load_of(accepted.reservation_id) is not None:
            return None
        live = self._promised.pop(accepted.reservation_id, None)
        load = live.load if live is not None else None
        if live is None or load is None:
            load = PendingLoad([], accepted.start // self._tokens_per_block, accepted.start, 0)
        else:
            self._keep(live, load, accepted.start, accepted.end)
        load.job = self._ledger.next_number()
        blocks = part_of(blocks_by_group(accepted.block_ids_by_layer_group), load.first, load.first + len(load.slots))
        position = load.first * self._tokens_per_block
        job = LoadJob(load.job, accepted.request_id, blocks, tuple(load.slots), position, accepted.reservation_id)
        return job, load

    def forget(self, load: PendingLoad) -> None:
        """Its request has ended, or begins again, before upstream has accepted it."""
        if load.reservation is not None:
            self._promised.pop(load.reservation, None)

    def _keep(self, live: LiveRequest, load: PendingLoad, start: int, end: int) -> None:
        """Keep the blocks that hold a token from `start` to `end`."""
        size = self._tokens_per_block
        first = start // size
        behind = -(-end // size) if end > start else first
        before, after = max(first - load.first, 0), max(behind - load.first, 0)
        live.index.unpin(load.slots[:before] + load.slots[after:])
        load.slots, load.first = load.slots[before:after], first
        load.position, load.tokens = start, max(end - start, 0)
