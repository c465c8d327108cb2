"""Doubles of the lowest part of the V2 runtime: slots, which are numbers with an event, and the memory of each level,
which has addresses alone. What is evicted, and where to, is not decided here.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple


class Handle(int):
    """Of whatever kind."""


class CopyTask(NamedTuple):
    dst: int
    src: int


class Node:
    """Of llist's dllist."""

    def __init__(self, value: Any) -> None:
        self.value = value


class LinkedList:
    """llist's dllist: its nodes stay what they are when others go."""

    def __init__(self) -> None:
        self._nodes: dict[Node, None] = {}

    @property
    def first(self) -> Node | None:
        return next(iter(self._nodes), None)

    def append(self, value: Any) -> Node:
        node = Node(value)
        self._nodes[node] = None
        return node

    def appendleft(self, value: Any) -> Node:
        node = Node(value)
        self._nodes = {node: None, **self._nodes}
        return node

    def remove(self, node: Node) -> Any:
        del self._nodes[node]
        return node.value

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Any]:
        return (node.value for node in self._nodes)


above = SimpleNamespace()  # of the runtime that stands on these; a process has one


@dataclass(slots=True)
class Slot:
    _slot_id: int | None
    ready_event: Any

    @property
    def slot_id(self) -> int:
        assert self._slot_id is not None
        return self._slot_id

    @property
    def has_valid_slot(self) -> bool:
        return self._slot_id is not None

    def set_slot(self, slot: Any) -> None:
        assert not self.has_valid_slot
        self._slot_id, self.ready_event = slot.slot_id, slot.ready_event
        slot._slot_id, slot.ready_event = None, above.never

    def move_to_new_slot(self) -> Any:
        made = Slot(None, above.never)
        made.set_slot(self)
        return made


class SlotAllocator:
    def __init__(self, capacity: int) -> None:
        self._capacity = self._target_capacity = capacity
        self._num_active_slots = 0  # numbers that have been given out
        self._recycled: deque[Any] = deque()
        self._overflow_slots: list[Any] = []

    @property
    def num_free_slots(self) -> int:
        return len(self._recycled) + max(self._target_capacity - self._num_active_slots, 0)

    def allocate_multiple(self, count: int) -> list[Any]:
        if count > self.num_free_slots:
            raise above.out_of_pages("there are not so many free slots")
        return [self._allocate() for _ in range(count)]

    def _allocate(self) -> Any:
        if self._num_active_slots < self._target_capacity:
            self._num_active_slots += 1
            return Slot(self._num_active_slots - 1, above.never)
        return self._recycled.popleft()

    def release(self, slot: Any) -> None:
        kept = slot.move_to_new_slot()
        (self._recycled if kept.slot_id < self._target_capacity else self._overflow_slots).append(kept)

    def prepare_for_shrink(self, capacity: int) -> None:
        self._target_capacity = capacity
        self._overflow_slots += [each for each in self._recycled if each.slot_id >= capacity]
        self._recycled = deque(each for each in self._recycled if each.slot_id < capacity)

    def finish_shrink(self) -> None:
        for slot in self._overflow_slots:
            slot.ready_event.synchronize()
        assert len(self._overflow_slots) == max(0, self._num_active_slots - self._target_capacity)
        self._overflow_slots.clear()
        self._capacity = self._target_capacity
        self._num_active_slots = min(self._num_active_slots, self._capacity)

    def expand(self, capacity: int) -> None:
        self._capacity = self._target_capacity = capacity


class PoolGroup:
    def __init__(self, base: int, sizes: Sequence[int], count: int) -> None:
        self._base, self.slot_size, self.num_slots = base, list(sizes), count
        self._slot_allocator = SlotAllocator(count)
        self.num_pools = len(self.slot_size)
        self.allocate_multiple = self._slot_allocator.allocate_multiple
        self.release = self._slot_allocator.release

    @property
    def num_free_slots(self) -> int:
        return self._slot_allocator.num_free_slots

    def resize_pools(self, count: int) -> None:
        self.num_slots = count

    def slot_address(self, slot: int) -> list[int]:
        return [self._base + (pool << 44) + slot * size for pool, size in enumerate(self.slot_size)]


class CacheLevelStorage:
    POOL_SIZE_GRANULARITY: ClassVar[int] = 4096
    cache_tier: Any

    def __init__(self, sizes: Sequence[Sequence[int]], counts: Sequence[int], *_: Any) -> None:
        base = (1 + int(self.cache_tier)) << 56
        self._pool_groups = [
            PoolGroup(base + (group << 50), each, count)
            for group, (each, count) in enumerate(zip(sizes, counts, strict=True))
        ]
        self.num_pool_groups = len(self._pool_groups)

    @staticmethod
    def ratio_to_slot_count_list(
        quota: int, sizes: Sequence[Sequence[int]], ratio: Sequence[float], *_: Any
    ) -> list[int]:
        return [round(quota * share / sum(each)) for each, share in zip(sizes, ratio, strict=True)]

    @property
    def ratio_list(self) -> list[float]:
        held = [sum(each.slot_size) * each.num_slots for each in self._pool_groups]
        return [each / sum(held) for each in held]

    def get_num_free_slots(self, group: int) -> int:
        return int(self._pool_groups[group].num_free_slots)

    def allocate_multiple(self, group: int, count: int) -> list[Any]:
        return list(self._pool_groups[group].allocate_multiple(count))

    def release(self, group: int, slot: Any) -> None:
        self._pool_groups[group].release(slot)

    def num_slots(self, group: int) -> int:
        return int(self._pool_groups[group].num_slots)

    def slot_size(self, group: int) -> list[int]:
        return list(self._pool_groups[group].slot_size)

    def slot_address(self, group: int, pool: int, slot: int) -> int:
        return int(self._pool_groups[group].slot_address(slot)[pool])

    def destroy(self) -> None:
        pass


def core(common: Any, out_of_pages: type[Exception], never: Any) -> dict[str, Any]:
    """The names of `_storage/_core.py`. `never` is the event of nothing."""
    above.out_of_pages, above.never = out_of_pages, never
    tiers = {"Gpu": common.CacheTier.GPU_MEM, "Host": common.CacheTier.HOST_MEM, "Disk": common.CacheTier.DISK}
    made = {
        f"{name}CacheLevelStorage": type(f"{name}CacheLevelStorage", (CacheLevelStorage,), {"cache_tier": tier})
        for name, tier in tiers.items()
    }
    return made | {
        "CacheLevelStorage": CacheLevelStorage,
        "PoolGroupBase": PoolGroup,
        "PoolGroupIndex": Handle,
        "PoolIndex": Handle,
        "Slot": Slot,
        "SlotId": Handle,
    }
