"""The canary beside upstream's own V1 manager: what it hears in the methods of the manager's class.

Every block that was filled is followed until it has a new owner. V1 evicts inside C++ and tells nobody, but only to
give the block to a request, and each of these is asked for its blocks behind the `prepare_resources` that gave it any.
Without a host tier a block is at one place for ever. With one it may move while no active request has it, and keeps its
number: by that the canary knows it again when a request reuses it, and until then nobody looks at it.

Every call is on the way of a step, so requests are asked only when it can mean anything. One that writes an answer gets
a position in each step that it is in, and *is due* when it can have got a further block. With drafts all are asked.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from trtllm_kvfix.canary.canary import Canary, Pool, guarded
from trtllm_kvfix.managers.tensors import on_cpu
from trtllm_kvfix.managers.watched import Order, begun, drafts_of, filled_of
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.staging import current_place

AHEAD_MAX = 2  # steps that are on their way: so many positions has a request got before the host knows their tokens


@dataclass(slots=True)
class _Holder:
    request: Any  # upstream's
    told: int  # leading positions of which the canary knows that they are filled
    blocks: int  # that it is known to have
    last: int  # the number of the last of them
    due: int = 0  # the step in which it can have got a further one


class V1Slots:
    """Those of requests. Without a host tier they are the numbers of their blocks. With one a table of offsets says
    where a block is."""

    def __init__(self, manager: Any, *, by_number: bool) -> None:
        self._impl, self._window = manager.impl, manager.max_attention_window_vec[0]
        self._in_pool, layers, sides, *_ = manager.impl.get_unique_primary_pool().shape
        self._by_number, self._offsets_per_slot = by_number, layers * sides
        self._row = on_cpu(np.zeros((1, 1, 2, manager.max_blocks_per_seq), np.int32))

    def of(self, request_id: int) -> list[int]:
        return self.of_all([request_id])[0]

    def of_all(self, request_ids: Sequence[int]) -> list[list[int]]:
        return [self.at(*each) for each in zip(request_ids, self._numbers_of_all(request_ids), strict=True)]

    def at(self, request_id: int, numbers: list[int]) -> list[int]:
        """Where its blocks are, whose numbers these are."""
        return self._checked(request_id, self._located(request_id, numbers, 0))

    def numbers_of(self, request_id: int) -> list[int]:
        """Of its blocks."""
        return self._numbers_of_all([request_id])[0]

    def _numbers_of_all(self, request_ids: Sequence[int]) -> list[list[int]]:
        """By one call, however many they are: each gives up the interpreter's lock."""
        return [numbers for (numbers,) in self._impl.get_batch_cache_block_ids(list(request_ids), self._window)]

    def number_of_last(self, request_id: int) -> int:
        """Of its blocks. Takes as long for a long request as for a short one."""
        return int(self._impl.get_last_block_id(request_id))

    def of_last(self, request_id: int, number: int, place: int) -> list[int]:
        return self._checked(request_id, self._located(request_id, [number], place))

    def _located(self, request_id: int, numbers: list[int], first: int) -> list[int]:
        if self._by_number:
            return numbers
        self._impl.copy_batch_block_offsets(self._row, [request_id], 1, 0)
        offsets = np.asarray(self._row)[0, 0, 0, first : first + len(numbers)]
        found: list[int] = (offsets // self._offsets_per_slot).tolist()
        return found

    def _checked(self, request_id: int, slots: list[int]) -> list[int]:
        """The kernel of the looks reads where these say, so one that is not in the pool ends the canary."""
        if slots and not 0 <= min(slots) <= max(slots) < self._in_pool:
            raise ValueError(
                f"request {request_id} has slots {min(slots)} to {max(slots)}, and the pool has {self._in_pool}; "
                "usual cause: a host tier that was not seen"
            )
        return slots


class WatchedV1:
    """Called by the loop's thread. Its faults end the canary alone."""

    def __init__(self, manager: Any, order: Order, canary: Canary, *, has_host: bool) -> None:
        self.canary = canary
        self._order, self._has_host, self._size = order, has_host, int(manager.tokens_per_block)
        self._slots = V1Slots(manager, by_number=not has_host)
        self._drafts = drafts_of(manager)
        self._holders: dict[int, _Holder] = {}
        self._coming: set[int] = set()  # requests of a batch that have no blocks before its call
        self._prompts: set[int] = set()  # of them, those whose prompts are not known to be computed
        # Without drafts the others, by the step in which one can have got a further block, and in which one that has
        # got it has filled the block before.
        self._resting: dict[int, list[int]] = {}
        self._filling: dict[int, list[int]] = {}
        self._due: list[int] = []  # until a batch has its blocks: upstream's call may fail
        self._step = self._heard = 0  # the last one, and the last in which a batch got its blocks
        self._batch: tuple[list[Any], list[Any]] = ([], [])  # prompts and answers
        self._writers: list[int] = []  # in it

    @property
    def fault(self) -> str | None:
        return self.canary.fault

    def stand_down(self, error: Exception) -> None:
        self.canary.stand_down(error)

    @guarded
    def begin_iteration(self, batch: Any) -> None:
        """The last step has been enqueued, and nothing has a new owner since. Upstream gives blocks to those of this
        batch that are at their beginning. Behind it the position of one that reuses has moved."""
        self._coming = {each.py_request_id for each in batch.context_requests if each.is_first_context_chunk}
        self._step += 1
        self._tell()
        self._due += self._resting.pop(self._step, ())
        if self._drafts:
            self._hear_of_rejected()
        with self._order:
            self.canary.step((), self._writers)

    @guarded
    def has_blocks(self, batch: Any) -> None:
        """This batch has its blocks, and has not been enqueued."""
        prompts, answers = list(batch.context_requests), list(batch.generation_requests)
        due = self._answers() if self._drafts else list(dict.fromkeys(filter(self._is_due, self._due)))
        self._due.clear()
        if due:
            self._go_on(due)
        self._heard = self._step
        for request in prompts:
            if request.is_dummy_request:
                self.canary.forget(self._slots.of(request.py_request_id))
            elif request.py_request_id not in self._holders:
                self._begins(request)
        if (prompts, answers) != self._batch:
            self._batch = prompts, answers
            self._writers = [each.py_request_id for each in chain(prompts, answers) if not each.is_dummy_request]

    @guarded
    def has_dummies(self, requests: Iterable[Any]) -> None:
        for request in requests:
            with suppress(RuntimeError, IndexError):  # of one that has got no blocks, whatever C++ raises for it
                self.canary.forget(self._slots.of(request.py_request_id))

    @guarded
    def ends(self, request_id: int) -> None:
        """It still has its blocks. It may never have had any."""
        self._batch = [], []  # it may be in it, and is not kept
        one = self._holders.pop(request_id, None)
        if one is None:
            return
        self._prompts.discard(request_id)
        if write := self._written(request_id, one, filled_of(one.request)):
            self.canary.wrote([write])
        slots = self.canary.books.slots_of(request_id)
        with self._order:
            self.canary.released(request_id)
        if self._has_host:
            self.canary.let_go(slots, self._slots.numbers_of(request_id)[: len(slots)])

    def close(self) -> None:
        self.canary.close()
        self._order.close()

    def _begins(self, request: Any) -> None:
        request_id = request.py_request_id
        if request_id not in self._coming:
            raise ValueError(f"request {request_id} is in the middle of its prompt, and nobody has heard that it came")
        numbers = self._slots.numbers_of(request_id)
        slots = self._slots.at(request_id, numbers)
        reused, last = request.context_current_position, self._slots.number_of_last(request_id)
        if not self._has_host and last != slots[-1]:
            raise ValueError(f"the last block of request {request_id} is {slots[-1]}, and {last} by get_last_block_id")
        # Where the last of it ends inside a block, V1 has copied that one, or has taken it over.
        if self._has_host:
            self.canary.hold(slots, numbers)
        self.canary.admitted(request_id, slots, reused, True)
        self._holders[request_id] = _Holder(request, reused, len(slots), last)
        self._prompts.add(request_id)

    def _tell(self) -> None:
        """Others find the blocks of a prompt as soon as these are computed, so nothing of it is told late."""
        size, writes = self._size, []
        for request_id in list(self._prompts):
            one = self._holders[request_id]
            writes.append(self._written(request_id, one, filled_of(one.request)))
            if not one.request.context_remaining_length:
                self._prompts.remove(request_id)
                room = one.blocks * size - one.request.get_num_tokens(0) - AHEAD_MAX
                self._rests(request_id, one, self._step + max(0, room))
        for request_id in self._answers() if self._drafts else self._filling.pop(self._step, ()):
            if (answering := self._holders.get(request_id)) is not None:
                filled = filled_of(answering.request)
                writes.append(self._written(request_id, answering, filled - filled % size))
        if any(writes):
            self.canary.wrote(filter(None, writes))

    def _written(self, request_id: int, one: _Holder, filled: int) -> tuple[int, int, int] | None:
        filled = min(filled, one.blocks * self._size)
        if filled <= one.told:
            return None
        begin, one.told = one.told, filled
        return request_id, begin, filled

    def _rests(self, request_id: int, one: _Holder, until: int) -> None:
        if not self._drafts:
            one.due = until
            self._resting.setdefault(until, []).append(request_id)

    def _is_due(self, request_id: int) -> bool:
        """Or else it has ended, and may have come again."""
        one = self._holders.get(request_id)
        return one is not None and request_id not in self._prompts and one.due <= self._step

    def _go_on(self, due: Sequence[int]) -> None:
        """Those that have got none are asked in each step from now on, so one that has got some has just begun it, but
        for steps in which upstream's call has failed."""
        failed = self._step - self._heard - 1
        got: list[tuple[int, int, int, Sequence[int]]] = []
        each_further = self._all_further(due) if self._drafts or failed else map(self._further, due)
        for request_id, further in zip(due, each_further, strict=True):
            one = self._holders[request_id]
            if further:
                one.blocks += len(further)
                got.append((request_id, 0, 0, further))
                if not self._drafts:
                    self._filling.setdefault(self._step + AHEAD_MAX, []).append(request_id)
            self._rests(request_id, one, self._step + max(1, len(further) * self._size - failed))
        if got:
            self.canary.went_on(got, self._has_host)

    def _further(self, request_id: int) -> list[int]:
        """The slot that it has got since it was last asked, if any."""
        one = self._holders[request_id]
        last, one.last = one.last, self._slots.number_of_last(request_id)
        return [] if one.last == last else self._slots.of_last(request_id, one.last, one.blocks)

    def _all_further(self, request_ids: Sequence[int]) -> list[list[int]]:
        """The same, however many they are."""
        found = self._slots.of_all(request_ids)
        for request_id in () if self._drafts else request_ids:
            self._holders[request_id].last = self._slots.number_of_last(request_id)
        return [slots[self._holders[each].blocks :] for each, slots in zip(request_ids, found, strict=True)]

    # ---- drafts: rejected ones give blocks back, which others may get ----

    def _answers(self) -> list[int]:
        return [request_id for request_id in self._holders if request_id not in self._prompts]

    def _hear_of_rejected(self) -> None:
        request_ids = self._answers()
        for request_id, slots in zip(request_ids, self._slots.of_all(request_ids), strict=True):
            one = self._holders[request_id]
            if len(slots) < one.blocks:
                rejected = self.canary.books.slots_of(request_id, len(slots))
                self.canary.shrunk(request_id, len(slots))
                if self._has_host:
                    self.canary.let_go(rejected)
                one.blocks = len(slots)


def pool_of(manager: Any) -> Pool:
    """Blocks one behind the other, each with its layers."""
    tensor = manager.impl.get_unique_primary_pool()
    slot_bytes = int(tensor.stride()[0]) * int(tensor.element_size())
    return Pool(int(tensor.data_ptr()), slot_bytes, range(int(tensor.shape[1])))


def watch(manager: Any, settings: Settings, *, has_host: bool) -> WatchedV1:
    device, stream = current_place().device, int(manager._stream.cuda_stream)
    pools, tokens_per_block = [pool_of(manager)], int(manager.tokens_per_block)
    canary = begun(device, stream, pools, tokens_per_block, settings, "V1")
    return WatchedV1(manager, Order(device, stream), canary, has_host=has_host)
