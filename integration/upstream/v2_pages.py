"""Pages of the V2 runtime: on the device, in the host tier behind it, and in the tree of prefixes. Ours."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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


def first_new_block(scope: Any, tokens: Sequence[int], reused: int, tokens_per_block: int) -> object:
    """The key of the block behind what is reused, if the tokens fill it: these tokens. Upstream has a digest."""
    end = (reused // tokens_per_block + 1) * tokens_per_block
    return (scope, tuple(tokens[:end])) if end <= len(tokens) else None


@dataclass(eq=False)
class Page:
    slot: int  # on the device, or in the host tier
    on_device: bool = True
    locks: int = 0  # active caches that read and write it
    holders: int = 0  # caches that must find it again
    block: "Block | None" = None  # in the tree


Tree = dict[tuple[Any, tuple[int, ...]], "Block"]  # by scope, and by all tokens up to the end of the block


@dataclass(eq=False)
class Block:
    """Tokens behind a certain prefix, which any cache with that prefix may read. The last one may not be full."""

    tree: Tree
    scope: Any
    tokens: tuple[int, ...]  # from the beginning
    parent: "Block | None"
    pools: "list[Pool]"
    pages: list[Page | None] = field(default_factory=list)
    children: "list[Block]" = field(default_factory=list)

    @classmethod
    def under(cls, parent: "Block | None", tree: Tree, scope: Any, tokens: tuple[int, ...], pools: "list[Pool]") -> Any:
        made = tree[scope, tokens] = cls(tree, scope, tokens, parent, pools, [None] * len(pools))
        if parent is not None:
            parent.children.append(made)
        return made

    def lacks(self, group: int) -> None:
        """Its page has been dropped. What follows a block that everybody reads is of no use without it."""
        self.pages[group] = None
        if self.pools[group].is_whole:
            self.remove()
        block: Block | None = self
        while block is not None and block.is_in_tree and block.pages[group] is None and not block.children:
            parent = block.parent
            block.remove()
            block = parent

    @property
    def is_in_tree(self) -> bool:
        return self.tree.get((self.scope, self.tokens)) is self

    def remove(self) -> None:
        """With all that follows it."""
        for child in list(self.children):
            child.remove()
        if not self.is_in_tree:
            return
        del self.tree[self.scope, self.tokens]
        if self.parent is not None:
            self.parent.children.remove(self)
        for pool, page in zip(self.pools, self.pages, strict=True):
            if page is not None:
                page.block = None
                pool.settle(page)
        self.pages = [None] * len(self.pages)


class Pool:
    """The pages of a layer group: on the device, and behind it in the host tier."""

    def __init__(self, window: int, slots: int, host_slots: int) -> None:
        self.window = window
        self.is_whole = True  # whether its layers read everything
        self.slots = slots
        self.has_host = host_slots > 0
        self.free = list(range(slots))  # the one given back last is handed out first
        self.host_free = list(range(host_slots))
        self.idle: OrderedDict[Page, None] = OrderedDict()  # on the device, and may fall; the next one first
        self.host_idle: OrderedDict[Page, None] = OrderedDict()  # in the host tier, and may be dropped
        self.falling: set[Page] = set()
        self.moves: list[tuple[str, int, int, int]] = []  # kind, window, source, target: not yet carried out

    @property
    def utilization(self) -> float:
        """Of the device: what can neither be handed out nor fall."""
        return 1 - (len(self.free) + len(self.idle)) / self.slots

    def settle(self, page: Page) -> None:
        """Somebody let go of the page, or took hold. It stays if a cache or the tree wants it."""
        queue = self.idle if page.on_device else self.host_idle
        if page in self.falling:
            return
        if page.locks:
            queue.pop(page, None)
        elif page.holders:
            if page.on_device and self.has_host:
                queue.setdefault(page)
            else:
                queue.pop(page, None)
        elif page.block is not None:
            queue.setdefault(page)
        else:
            queue.pop(page, None)
            self._give_back(page)

    def hold(self, page: Page) -> None:
        page.holders += 1
        self.settle(page)

    def release(self, page: Page) -> None:
        page.holders -= 1
        self.settle(page)

    def lock(self, page: Page) -> None:
        page.locks += 1
        self.settle(page)

    def unlock(self, page: Page) -> None:
        page.locks -= 1
        self.settle(page)

    def onboard(self, page: Page) -> None:
        slot = self.free.pop()
        self.moves.append(("onboard", self.window, page.slot, slot))
        self.host_idle.pop(page, None)
        self.host_free.append(page.slot)
        page.slot, page.on_device = slot, True

    def fall(self, count: int) -> list[Page]:
        """Out of the queue, so that this many slots can become free. Nothing has moved yet."""
        pages = [self.idle.popitem(last=False)[0] for _ in range(max(0, count - len(self.free)))]
        self.falling.update(pages)
        return pages

    def has_no_room_for(self, fallen: list[Page]) -> bool:
        return sum(page.holders > 0 for page in fallen) > len(self.host_free) + len(self.host_idle)

    def oldest(self, fallen: list[Page]) -> list[Page]:
        """Of the host tier, out of the queue: they go for those that fall."""
        count = max(0, min(len(fallen) - len(self.host_free), len(self.host_idle)))
        pages = [self.host_idle.popitem(last=False)[0] for _ in range(count)]
        self.falling.update(pages)
        return pages

    def take_in(self, fallen: list[Page]) -> None:
        """Into the host tier: those that are held, and the others as far as there is room."""
        fallen.sort(key=lambda page: page.holders > 0)
        dropped = len(fallen) - min(len(fallen), len(self.host_free))
        for page in fallen[dropped:]:
            target = self.host_free.pop()
            self.moves.append(("offload", self.window, page.slot, target))
            self.free.append(page.slot)
            page.slot, page.on_device = target, False
            self.falling.discard(page)
            if not page.holders:
                self.host_idle[page] = None  # also where the tree has lost it meanwhile
        for page in fallen[:dropped]:
            self.drop(page)

    def drop(self, page: Page) -> None:
        """Nobody holds it."""
        self.falling.discard(page)
        block, page.block = page.block, None
        self._give_back(page)
        if block is not None:
            block.lacks(block.pages.index(page))

    def _give_back(self, page: Page) -> None:
        (self.free if page.on_device else self.host_free).append(page.slot)

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


def make_room(pools: list[Pool], counts: list[int]) -> None:
    """That many free slots on the device, in each pool. What held pages fell for nothing fall no more until they have
    been locked again; upstream asks itself whether to revert that."""
    for pool, count in zip(pools, counts, strict=True):
        if count > len(pool.free) + len(pool.idle):
            raise OutOfPages(f"{count} pages of {pool.slots} are wanted, the others are locked")
    fallen = [pool.fall(count) for pool, count in zip(pools, counts, strict=True)]
    if any(pool.has_no_room_for(pages) for pool, pages in zip(pools, fallen, strict=True)):
        for pool, pages in zip(pools, fallen, strict=True):
            for page in pages:
                pool.falling.discard(page)
                if not page.holders:
                    pool.drop(page)
        raise OutOfPages("the host tier has no room for pages that are held")
    going = [pool.oldest(pages) for pool, pages in zip(pools, fallen, strict=True)]
    for pool, pages in zip(pools, going, strict=True):
        for page in pages:
            pool.drop(page)
    for pool, pages in zip(pools, fallen, strict=True):
        pool.take_in(pages)


def lock_all(pools: list[Pool], pages: list[tuple[int, Page]]) -> None:
    """Each with the number of its pool. All or none."""
    waiting = [(pool, page) for pool, page in pages if page in pools[pool].idle]
    for pool, page in waiting:
        del pools[pool].idle[page]
    counts = [sum(number == pool and not page.on_device for pool, page in pages) for number in range(len(pools))]
    try:
        make_room(pools, counts)
    except OutOfPages:
        for pool, page in waiting:
            pools[pool].settle(page)
        raise
    for pool, page in pages:
        if not page.on_device:
            pools[pool].onboard(page)
        pools[pool].lock(page)
