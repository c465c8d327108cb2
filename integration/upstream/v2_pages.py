"""Pages of the V2 runtime: on the device, in the host tier behind it, and in the tree of prefixes. Ours."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple


class OutOfPages(RuntimeError):
    """Upstream's runtime raises it inside, and answers False."""


class Range(NamedTuple):
    beg: int
    end: int


@dataclass(frozen=True)
class LifeCycle:
    """A layer group no longer reads these blocks of a sequence."""

    window_size: int | None

    @classmethod
    def make(cls, window: int | None, _sinks: int | None, _tokens_per_block: int) -> "LifeCycle":
        return cls(window)

    def get_stale_range(self, history: int, tokens_per_block: int) -> Range:
        if self.window_size is None:
            return Range(0, 0)
        return Range(0, max(0, history + 1 - self.window_size) // tokens_per_block)


@dataclass(eq=False)
class Page:
    slot: int  # on the device, or in the host tier
    on_device: bool = True
    locks: int = 0  # active caches that read and write it
    holders: int = 0  # caches that must find it again
    block: "Block | None" = None  # in the tree


@dataclass(eq=False)
class Block:
    """A full block of tokens behind a certain prefix, which any cache with that prefix may read."""

    pages: list[Page | None]


class Pool:
    """The pages of a layer group: on the device, and behind it in the host tier."""

    def __init__(self, window: int, slots: int, host_slots: int) -> None:
        self.window = window
        self.slots = slots
        self.free = list(range(slots))  # the one given back last is handed out first
        self.host_free = list(range(host_slots))
        self.idle: OrderedDict[Page, None] = OrderedDict()  # on the device and not locked, oldest first
        self.moves: list[tuple[str, int, int, int]] = []  # kind, window, source, target: not yet carried out

    def take(self) -> int:
        if not self.free:
            self._evict()
        return self.free.pop()

    def settle(self, page: Page) -> None:
        """Somebody let go of the page. It stays if a cache or the tree wants it."""
        if page.locks:
            return
        if not page.holders and page.block is None:
            self.idle.pop(page, None)
            (self.free if page.on_device else self.host_free).append(page.slot)
        elif page.on_device:
            self.idle[page] = None

    def lock(self, page: Page) -> None:
        if not page.on_device:
            slot = self.take()
            self.moves.append(("onboard", self.window, page.slot, slot))
            self.host_free.append(page.slot)
            page.slot, page.on_device = slot, True
        page.locks += 1
        self.idle.pop(page, None)

    def unlock(self, page: Page) -> None:
        page.locks -= 1
        self.settle(page)

    def fits(self, slots: int) -> bool:
        """Whether the pages on the device do."""
        return self.slots - len(self.free) <= slots

    def resize(self, slots: int) -> None:
        """Another share of the memory, while nobody has a lock: pages behind its end move to slots before it."""
        used = {page.slot for page in self.idle}
        assert len(used) + len(self.free) == self.slots, "a cache is active"
        free = [slot for slot in range(slots) if slot not in used]
        for page in self.idle:
            if page.slot >= slots:
                self.moves.append(("move", self.window, page.slot, free[0]))
                page.slot = free.pop(0)
        self.slots, self.free = slots, free

    def _evict(self) -> None:
        unheld = next((page for page in self.idle if not page.holders), None)
        if unheld is not None and unheld.block is not None:
            unheld.block.pages = [None if each is unheld else each for each in unheld.block.pages]
            unheld.block = None
            self.settle(unheld)
            return
        if not self.idle or not self.host_free:
            raise OutOfPages("every page is locked, or held and the host tier is full")
        page, _ = self.idle.popitem(last=False)
        target = self.host_free.pop()
        self.moves.append(("offload", self.window, page.slot, target))
        self.free.append(page.slot)
        page.slot, page.on_device = target, False
