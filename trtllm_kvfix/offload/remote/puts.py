"""Puts to the store: blocks that have arrived in the host pool, whether the host tier has taken them or not."""

from dataclasses import dataclass

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Ended, Link, PutJob
from trtllm_kvfix.offload.requests import LiveRequest

STAGING_SHARE = 8  # of the host pool, one slot in so many


def staging_slots(slots: int) -> int:
    """Counts the staging slots of a pool of so many. The host tier has the rest, at least one."""
    return min(max(slots // STAGING_SHARE, 1), slots - 1)


class Staging:
    """The last slots of the host pool: through them, blocks go to the store that the host tier does not take.

    The store is larger than the host tier, so what is not worth a place here may be worth one there. The index of the
    host tier knows nothing of these slots: a block has one from the plan of its store until its put is over, and nobody
    finds it meanwhile.

    The executor's thread alone uses it.
    """

    def __init__(self, slots: int) -> None:
        self.first = slots - staging_slots(slots)
        self._free = list(range(self.first, slots))
        self._all = len(self._free)

    def __contains__(self, slot: int) -> bool:
        return slot >= self.first

    def take(self, count: int, of_prompt: int) -> tuple[int, ...]:
        """Fewer than `count` if there are no more. Blocks behind the prompt's leave half of the slots free."""
        for_answers = max(len(self._free) - self._all // 2, 0)
        count = max(min(count, of_prompt), min(count, for_answers))
        taken, self._free = self._free[:count], self._free[count:]
        return tuple(taken)

    def give_back(self, slots: tuple[int, ...]) -> None:
        self._free.extend(slots)


PUT_SHARE = 4  # of the host tier, one part in so many may wait to be put; answers take at most half of that part


@dataclass
class Stored:
    """Plan for the end of a store: its blocks, from `first` on, go to the remote tier as well."""

    live: LiveRequest
    first: int


class Puts:
    """The executor's thread alone uses it. A sequence is held from the plan of a store until its put is over."""

    def __init__(self, link: Link) -> None:
        self._link, self._ledger = link, link.ledger
        self._staging = Staging(1)  # until the pool is known
        self._pinned = 0  # slots of the host tier
        self._coming: set[bytes] = set()  # keys of what is being put

    def share(self, slots: int) -> int:
        """Counts the pool's slots that the host tier has."""
        self._staging = Staging(slots)
        return self._staging.first

    def is_staged(self, slots: tuple[int, ...]) -> bool:
        """Whether the slots of a store or put are staging slots: the index knows nothing of them."""
        return slots[0] in self._staging

    def stage(self, live: LiveRequest, first: int, end: int) -> tuple[int, ...]:
        """Slots for these blocks, or for the leading part of them that there is room for."""
        if first >= end or live.chain is None or not self._is_up():
            return ()
        slots = self._staging.take(end - first, live.prompt_blocks_from(first))
        counters.offload_remote_staged_blocks.add(len(slots))
        counters.offload_remote_dropped_blocks.add(end - first - len(slots))
        return slots

    def plan_of(self, live: LiveRequest, first: int) -> Stored | None:
        if live.chain is None or self._link.store is None:
            return None
        live.hold()
        return Stored(live, first)

    def begin(self, stored: Stored, slots: tuple[int, ...], *, well: bool) -> None:
        """Its store is over. Only what arrived is put."""
        live, first = stored.live, stored.first
        if well and live.chain is not None:  # none: the weights have changed since
            of_prompt = min(live.prompt_blocks_from(first), len(slots))
            self._begin(live, first, slots[:of_prompt], is_prompt=True)
            self._begin(live, first + of_prompt, slots[of_prompt:], is_prompt=False)
        elif self.is_staged(slots):
            self._staging.give_back(slots)
        live.let_go()

    def again(self, live: LiveRequest, first: int, end: int) -> None:
        """Put blocks that are in the host tier and no longer in the store. Requests wait for none of these."""
        if live.chain is None or first >= end:
            return
        missing = [key not in self._coming for key in live.chain.keys(first, end)]
        if True not in missing:
            return
        begin = missing.index(True)
        count = [*missing[begin:], False].index(False)
        slots = self._pin(live, first + begin, count, is_prompt=True)
        self._plan(live, first + begin, slots, is_prompt=True)

    def _begin(self, live: LiveRequest, first: int, slots: tuple[int, ...], *, is_prompt: bool) -> None:
        if slots and not self.is_staged(slots):
            slots = self._pin(live, first, len(slots), is_prompt=is_prompt)
        self._plan(live, first, slots, is_prompt=is_prompt)

    def _plan(self, live: LiveRequest, first: int, slots: tuple[int, ...], *, is_prompt: bool) -> None:
        if not slots or live.chain is None:
            return
        live.hold()
        keys = live.chain.keys(first, first + len(slots))
        self._coming.update(keys)
        self._ledger.plan(PutJob(self._ledger.next_number(), live.request_id, keys, slots, is_prompt), live)

    def end(self, live: LiveRequest, put: PutJob, ended: Ended) -> None:
        if self.is_staged(put.slots):
            self._staging.give_back(put.slots)
        else:
            live.index.unpin(put.slots)
            self._pinned -= len(put.slots)
        self._coming.difference_update(put.keys)
        live.let_go()
        if ended.no_room or ended.error:
            counters.offload_remote_dropped_blocks.add(len(put.slots))
        if ended.error and not ended.no_room:
            counters.offload_remote_errors.add()
        if not ended.error:
            counters.offload_remote_put_blocks.add(len(put.slots))

    def _pin(self, live: LiveRequest, first: int, blocks: int, *, is_prompt: bool) -> tuple[int, ...]:
        """Pins blocks of the host tier: they stay where they are until the put is over, and no more than a part of it
        does."""
        share = PUT_SHARE if is_prompt else 2 * PUT_SHARE
        room = max(live.index.slots // share, 1) - self._pinned
        count = max(min(blocks, room), 0) if self._is_up() else 0
        counters.offload_remote_dropped_blocks.add(blocks - count)
        slots = live.index.pin(live.sequence, first, first + count)
        self._pinned += len(slots)
        return tuple(slots)

    def _is_up(self) -> bool:
        return self._link.store is not None and self._link.store.is_up
