"""The canary beside upstream's own V2 manager: what it hears in the methods of the manager's class.

Which slots a request owns is asked of its cache on the host, never of the table on the device.

A *group* is upstream's layer group: layers whose blocks come and go together. Each has a canary of its own.

Where blocks cannot leave the device, every block that was filled is followed until its slot has a new owner. Where they
can (a host tier, which V2 has by default, or pools that are rebalanced), upstream says of the blocks of active requests
alone where they are: others are forgotten, and those of a suspended request are known again when it is resumed.

Every call is on the way of a step, so requests are asked for their lengths only while these can mean anything. One that
writes an answer *rests* from when it has begun a block until it can have got a further one: it commits nothing, and no
block of it can be given back. Where blocks can leave the device, a word of further blocks may be late: the canary has
forgotten what nobody active has, and looks at nothing there. So a request of the batch, which is active, rests until it
can have filled its block, a position in a step, and none is asked before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter, gt
from typing import Any, TypeAlias

import numpy as np

from trtllm_kvfix.canary.canary import Canary, Pool, guarded
from trtllm_kvfix.canary.fills import NOWHERE
from trtllm_kvfix.log import described
from trtllm_kvfix.managers.upstream_v2 import pool_group
from trtllm_kvfix.managers.watched import Order, begun, drafts_of, filled_of
from trtllm_kvfix.native import Device
from trtllm_kvfix.settings import Settings

ASKED_MAX = 32  # requests that have rested and are asked in one step, where they can wait

capacity_of, is_active = attrgetter("capacity"), attrgetter("is_active")


@dataclass(slots=True)
class _Followed:
    cache: Any  # upstream's; a request that is computed again gets another one
    told: int  # leading positions of which the canaries know that they are filled
    committed: int  # when its slots were last read
    blocks: int  # the same
    filled: int = 0  # positions, when it was last asked
    request: Any = None  # upstream's, once it is in a batch; a dummy that pads one never is
    is_away: bool = False  # suspended, as far as is known


class _Resting:
    """Caches by request. Each step asks all of them for their capacity, which no loop of Python's does."""

    def __init__(self) -> None:
        self.caches: dict[int, Any] = {}
        self._bounds: dict[int, int] = {}  # in the same order: the capacity above which each is asked for more

    def add(self, request_id: int, one: _Followed, end: int, _step: int) -> None:
        self.caches[request_id], self._bounds[request_id] = one.cache, end

    def discard(self, request_id: int) -> None:
        if self.caches.pop(request_id, None) is not None:
            del self._bounds[request_id]

    def due(self, _step: int) -> list[int]:
        return list(compress(self.caches, map(gt, map(capacity_of, self.caches.values()), self._bounds.values())))

    def inactive(self) -> list[int]:
        if all(map(is_active, self.caches.values())):
            return []
        return [request_id for request_id, cache in self.caches.items() if not cache.is_active]


class _RestingUntil(_Resting):
    """A request is not asked before the step in which it can have filled its block."""

    def __init__(self, positions_per_step: int) -> None:
        super().__init__()
        self._speed = positions_per_step
        self._due: dict[int, list[int]] = {}  # by step, and steps are the bounds

    def add(self, request_id: int, one: _Followed, end: int, step: int) -> None:
        until = step - (one.filled - end - 1) // self._speed
        self.caches[request_id], self._bounds[request_id] = one.cache, until
        if until in self._due:
            self._due[until].append(request_id)
        else:
            self._due[until] = [request_id]

    def due(self, step: int) -> list[int]:
        """Some wait for the next step, where many began together."""
        bounds = self._bounds
        found = [each for each in self._due.pop(step, ()) if bounds.get(each) == step]
        if len(found) > ASKED_MAX:
            waiting = found[ASKED_MAX:]
            bounds.update(dict.fromkeys(waiting, step + 1))
            self._due[step + 1] = waiting + self._due.get(step + 1, [])
            del found[ASKED_MAX:]
        return found


# A request and its cache, the positions that it has written, from one to another, and blocks that it has got, the same.
_Part: TypeAlias = tuple[int, Any, int, int, int, int]
# Places at which a request has got other slots, with these, and the slots of further blocks.
_Taken: TypeAlias = tuple[list[tuple[int, int]], list[int]]


class WatchedGroup:
    """Slots of one layer group. What is not in it of a request's blocks, a window has passed."""

    def __init__(self, number: int, canary: Canary, *, slides: bool, knows_all: bool) -> None:
        self.canary, self.slides = canary, slides
        self._number, self._knows_all = number, knows_all

    def begins(self, request_id: int, cache: Any, blocks: int, reused: int) -> None:
        slots = self._read(cache, 0, blocks)
        self._hold(slots)
        self.canary.admitted(request_id, slots, reused, True)

    def lets_go(self, request_id: int, cache: Any, first: int, blocks: int) -> _Taken:
        """Its blocks from the `first` on may be others. Returns what it has got instead, and behind them."""
        first = 0 if self.slides else min(first, blocks)  # a window may have passed any
        known, slots = self.canary.books.slots_of(request_id, first), self._read(cache, first, blocks)
        changed = _differing(known, slots)
        for place in changed:
            self.canary.replaced(request_id, first + place, NOWHERE)
            self._let_go([known[place]])
        if len(known) > len(slots):
            self.canary.shrunk(request_id, blocks)
            self._let_go(known[len(slots) :])
        return [(first + place, slots[place]) for place in changed], slots[len(known) :]

    def takes(self, request_id: int, taken: _Taken, blocks_committed: int) -> None:
        """All requests have let go of what is no longer theirs. A block that is not committed was given back, with
        rejected drafts, and is another one now."""
        changed, further = taken
        for place, slot in changed:
            self._hold([slot])
            (self.canary.replaced if place < blocks_committed else self.canary.regrown)(request_id, place, slot)
        if further:
            self._hold(further)
            self.canary.grown(request_id, further)

    def go_on(self, parts: Iterable[_Part]) -> None:
        """What is known of the slots of these requests is right. They have got few, or none."""
        told = [
            (request_id, begin, end, self._read(cache, first, blocks) if blocks > first else ())
            for request_id, cache, begin, end, first, blocks in parts
        ]
        self.canary.went_on(told, not self._knows_all)

    def leaves(self, request_id: int, places_known: int) -> None:
        self.canary.left(request_id, places_known)
        self._let_go(self.canary.books.slots_of(request_id))

    def comes_back(self, request_id: int, cache: Any, blocks: int) -> None:
        slots = self._read(cache, 0, blocks)
        self._hold(slots)
        self.canary.came_back(request_id, slots)

    def ends(self, request_id: int, *, is_away: bool, is_over: bool) -> None:
        """`is_over`: its slots may have other owners by now."""
        slots = self.canary.books.slots_of(request_id)
        (self.canary.lost if is_over else self.canary.released)(request_id)
        if not is_away:
            self._let_go(slots)

    def _read(self, cache: Any, first: int, blocks: int) -> list[int]:
        found: list[int] = np.asarray(cache.get_base_page_indices(self._number))[first:blocks].tolist()
        return found

    def _hold(self, slots: list[int]) -> None:
        if slots and not self._knows_all:
            self.canary.hold(slots)

    def _let_go(self, slots: list[int]) -> None:
        if not self._knows_all:
            self.canary.let_go(slots)


def _differing(known: list[int], slots: list[int]) -> list[int]:
    """Places, as far as both go."""
    if known == slots[: len(known)]:
        return []
    return [place for place, (old, new) in enumerate(zip(known, slots, strict=False)) if old != new]


class WatchedV2:
    """Called by the loop's thread. Its faults end the canary alone."""

    def __init__(self, manager: Any, order: Order, groups: Sequence[WatchedGroup], *, knows_all: bool) -> None:
        self.fault: str | None = None
        self.groups = groups
        self._manager, self._size = manager, int(manager.tokens_per_block)
        self._order, self._knows_all = order, knows_all
        self._slides = any(group.slides for group in groups)
        self._followed: dict[int, _Followed] = {}
        self._asked: dict[int, _Followed] = {}  # those that do not rest
        # Beside a host tier windows pass blocks of anyone, in any step.
        self._may_rest = knows_all or not self._slides
        self._resting: _Resting = _Resting() if knows_all else _RestingUntil(1 + drafts_of(manager))
        self._step = 0
        self._caches: dict[int, Any] = {}  # upstream's, as they were when they were last heard
        self._new: dict[int, Any] = {}  # of them, those that have never been active
        self._resumed: set[int] = set()  # since their slots were last read
        # Prompts and answers of the last one, while all that is remembered of it is right.
        self._batch: tuple[list[Any], list[Any]] | None = None
        self._present: set[int] = set()  # in it
        self._writers: list[int] = []  # in it

    def stand_down(self, error: Exception) -> None:
        self.fault = described(error)
        for group in self.groups:
            if group.canary.fault is None:
                group.canary.stand_down(error)

    @guarded
    def begin_iteration(self, batch: Any) -> None:
        """The last step has been enqueued, and this batch has its slots."""
        self._step += 1
        requests = batch.context_requests, batch.generation_requests
        is_last = requests == self._batch  # batches are often the same for many steps
        if not is_last:
            self._present = {each.py_request_id for each in chain(*requests)}
            self._wake_absent()
        self._hear(is_last)
        with self._order:
            for group in self.groups:
                group.canary.step((), self._writers)
                if group.canary.fault is not None:
                    raise RuntimeError(group.canary.fault)
        if self._batch is None or not is_last:
            self._remember(*requests)

    @guarded
    def resumed(self, request_id: int) -> None:
        self._resumed.add(request_id)

    @guarded
    def ends(self, request_id: int) -> None:
        """It still has its slots. It may never have had any."""
        self._batch = None  # it may be in it, and is not kept
        one = self._followed.get(request_id)
        if one is not None and self._is_as_heard(request_id, one):
            self._tell_writes({request_id: one})
        elif one is not None or request_id in self._manager.kv_cache_map:
            self._wake([*self._resting.inactive(), *self._resting.caches.keys() & {request_id}])
            self._hear(is_last=False)
        self._caches.pop(request_id, None)
        self._new.pop(request_id, None)
        if request_id in self._followed:
            with self._order:
                self._ends(request_id, is_over=False)

    def close(self) -> None:
        for group in self.groups:
            group.canary.close()
        self._order.close()

    def _is_as_heard(self, request_id: int, one: _Followed) -> bool:
        """Whether it has the slots that are known. Then nobody else matters: they are compared, and no others."""
        return (
            self._manager.kv_cache_map.get(request_id) is one.cache
            and one.cache.is_active
            and not one.is_away
            and request_id not in self._resumed
            and self._keeps(one, *self._lengths(one.cache))
        )

    def _keeps(self, one: _Followed, blocks: int, committed: int) -> bool:
        """Whether it must have the slots that are known. One that it has not begun may have been given back, with
        rejected drafts, and another got."""
        is_begun = one.filled > (blocks - 1) * self._size
        return blocks == one.blocks and committed == one.committed and is_begun and self._may_rest

    def _remember(self, prompts: Sequence[Any], answers: Sequence[Any]) -> None:
        self._batch, self._writers = (list(prompts), list(answers)), []
        for each in chain(prompts, answers):
            if not each.is_dummy_request:
                self._writers.append(each.py_request_id)
                if each.py_request_id in self._followed:
                    self._followed[each.py_request_id].request = each

    def _hear(self, is_last: bool) -> None:
        """What was written first, by the slots in which it was; then who has let go of slots, and then who has got
        some. `is_last`: the batch is the last one, so nobody in it has got another cache."""
        if self._resumed:
            self._wake(self._resumed & self._resting.caches.keys())
        due = self._resting.due(self._step)
        if self._asked:
            self._tell_writes(self._asked)
        if self._knows_all or not is_last or len(self._manager.kv_cache_map) != len(self._caches):
            self._compare_caches()
        if self._asked or self._new:
            self._hear_of_slots()
        self._resumed.clear()
        if due:
            self._go_on(due)
        if self._asked:
            self._lay_to_rest()

    def _hear_of_slots(self) -> None:
        resumed, changed = self._resumed, []
        coming = [request_id for request_id, cache in self._new.items() if cache.is_active]
        for request_id, one in self._asked.items():
            has_slots = one.cache.is_active
            if not (self._knows_all or one.is_away) and (request_id in resumed or not has_slots):
                self._leaves(request_id, one)
            if has_slots:
                if one.is_away:
                    coming.append(request_id)
                elif taken := self._lets_go(request_id, one):
                    changed.append((request_id, taken))
        for request_id, taken in changed:
            for group, of_group in zip(self.groups, taken, strict=True):
                group.takes(request_id, of_group, self._followed[request_id].committed // self._size)
        for request_id in coming:
            self._comes(request_id)

    def _wake(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            self._resting.discard(request_id)
            self._asked[request_id] = self._followed[request_id]

    def _wake_absent(self) -> None:
        """Who is in the batch is active."""
        self._wake(self._resting.caches.keys() - self._present)

    def _lay_to_rest(self) -> None:
        for request_id, one in list(self._asked.items()):
            if self._can_rest(request_id, one):
                del self._asked[request_id]
                self._resting.add(request_id, one, one.blocks * self._size, self._step)

    def _can_rest(self, request_id: int, one: _Followed) -> bool:
        """A prompt is committed behind its last step, and before the second token of its answer is known. A block that
        has been written to is not given back."""
        if not self._may_rest or request_id not in self._present or one.request is None or one.is_away:
            return False
        end = one.blocks * self._size
        is_answer = one.filled > one.request.context_current_position
        return is_answer and end - self._size < one.filled and one.cache.capacity <= end

    def _go_on(self, due: list[int]) -> None:
        """Those that have rested, and so have let go of nothing and committed nothing: nobody else has their blocks.
        Each rests on where it has begun its last block."""
        size, resting = self._size, self._resting
        parts: list[_Part] = []
        for request_id in due:
            if request_id not in resting.caches:  # it has ended
                continue
            one = self._followed[request_id]
            cache, begin, first = one.cache, one.told, one.blocks
            one.filled = filled = filled_of(one.request)
            end = min(filled // size, first) * size
            if end > begin:
                one.told = end
            blocks = -(-cache.capacity // size)
            if blocks > first and cache.is_active:
                one.blocks = blocks
            parts.append((request_id, cache, begin, end, first, one.blocks))
            if blocks == one.blocks and filled > (blocks - 1) * size:
                resting.add(request_id, one, blocks * size, self._step)
            else:
                self._wake([request_id])
        for group in self.groups:
            group.go_on(parts)

    def _compare_caches(self) -> None:
        """Caches are made and closed, and a request that is computed again gets another one."""
        if self._manager.kv_cache_map == self._caches:
            return
        caches = self._caches = dict(self._manager.kv_cache_map)
        for request_id in [each for each, one in self._followed.items() if caches.get(each) is not one.cache]:
            self._ends(request_id, is_over=True)
        self._new = {request_id: cache for request_id, cache in caches.items() if request_id not in self._followed}

    def _ends(self, request_id: int, *, is_over: bool) -> None:
        one = self._followed.pop(request_id)
        self._asked.pop(request_id, None)
        self._resting.discard(request_id)
        for group in self.groups:
            group.ends(request_id, is_away=one.is_away, is_over=is_over)

    def _tell_writes(self, asked: dict[int, _Followed]) -> None:
        """Where a further block is full by now, of those whose slots are known."""
        size, caches = self._size, self._manager.kv_cache_map
        writes: list[tuple[int, int, int]] = []
        for request_id, one in asked.items():
            if one.request is None or one.is_away or caches.get(request_id) is not one.cache:
                continue
            one.filled = filled = filled_of(one.request)
            filled = min(filled - filled % size, one.blocks * size)
            if filled > one.told:
                writes.append((request_id, one.told, filled))
                one.told = filled
        for group in self.groups if writes else ():
            group.canary.wrote(writes)

    def _leaves(self, request_id: int, one: _Followed) -> None:
        """A block that was committed since its slots were read may be another's by now."""
        one.is_away = True
        is_known = one.cache.num_committed_tokens == one.committed
        for group in self.groups:
            group.leaves(request_id, one.blocks if is_known else one.committed // self._size)

    def _lets_go(self, request_id: int, one: _Followed) -> list[_Taken]:
        """Returns what it has got, by group; nothing where no slots can have changed."""
        blocks, committed = self._lengths(one.cache)
        if self._keeps(one, blocks, committed):
            return []
        is_committed = committed == one.committed  # equal blocks take the places of what is committed, and no others
        first = (one.told if is_committed else min(one.told, one.committed)) // self._size
        one.blocks, one.committed = blocks, committed
        return [group.lets_go(request_id, one.cache, first, blocks) for group in self.groups]

    def _comes(self, request_id: int) -> None:
        """For the first time, or again."""
        cache = self._caches[request_id]
        blocks, committed = self._lengths(cache)
        one = self._followed.get(request_id)
        if one is None:
            del self._new[request_id]
            self._batch = None  # its request may be in it
            self._asked[request_id] = self._followed[request_id] = _Followed(cache, committed, committed, blocks)
            for group in self.groups:
                group.begins(request_id, cache, blocks, committed)
        else:
            one.is_away, one.blocks, one.committed = False, blocks, committed
            for group in self.groups:
                group.comes_back(request_id, cache, blocks)

    def _lengths(self, cache: Any) -> tuple[int, int]:
        return -(-cache.capacity // self._size), cache.num_committed_tokens


def pool_of(manager: Any, group: int) -> Pool:
    """Layers lie one behind the other, each with all its buffers."""
    found = pool_group(manager, group)
    (pool,) = found.pools
    (variant,) = [each for each in found.slot_desc.variants if each.layer_group_id == group]
    layers = dict.fromkeys(buffer.layer_id for each in variant.coalesced_buffers for buffer in each.buffer_ids)
    return Pool(int(pool.base_address), int(pool.slot_bytes), list(layers))


def hears_all(manager: Any) -> bool:
    """Whether blocks stay in their slots until these have a new owner, which asks for slots of the same group and is
    heard. With drafts a request may get blocks behind `prepare_resources`, and give them back before the next."""
    config, runtime = manager.kv_cache_manager_py_config, manager.impl
    if drafts_of(manager):
        return False
    return len(config.cache_tiers) == len(runtime.pool_group_descs) == len(runtime.layer_grouping) == 1


def watch(manager: Any, settings: Settings, device: Device, *, knows_all: bool) -> WatchedV2:
    config, stream = manager.kv_cache_manager_py_config, int(manager._stream.cuda_stream)
    grouping = manager.impl.layer_grouping
    groups = []
    for number, layers in enumerate(grouping):
        canary = begun(
            device, stream, [pool_of(manager, number)], int(manager.tokens_per_block), settings, "V2",
            one_of=len(grouping), knows_all=knows_all,
        )  # fmt: skip
        slides = any(config.layers[layer].sliding_window_size is not None for layer in layers)
        groups.append(WatchedGroup(number, canary, slides=slides, knows_all=knows_all))
    return WatchedV2(manager, Order(device, stream), groups, knows_all=knows_all)
