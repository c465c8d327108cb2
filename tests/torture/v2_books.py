"""In the place of the stand-in's V2 runtime: pages of two layer groups, one of which slides, and a host level behind
them. The runtime is the rig's; any other that upstream's manager could call does as well."""

from collections.abc import Callable
from typing import Any, Protocol

from integration.upstream.v2_pages import LifeCycle, Pool
from integration.upstream.v2_runtime import BAD_PAGE, Runtime

from .v2_contents import WINDOW, AsEnqueued, Move, Order

SLIDING = (LifeCycle(None), LifeCycle(WINDOW))


class Levels(Protocol):
    """A runtime, and what an attack wants of it besides."""

    runtime: Any
    has_host: bool  # whether pages leave the device for a tier behind it

    @property
    def order(self) -> Order:
        """In which order the steps and the copies of pages are carried out."""

    def begin(self, move: Callable[[str, int, int, int], None], wait: Callable[[], object]) -> None:
        """What to do with a page that is copied, and how the host waits for the steps."""

    def take_moves(self) -> list[Move]:
        """Copies of pages since the last call, in their order."""

    def adjust(self) -> bool:
        """Shares the memory out anew between the groups. No cache is active."""

    def leftovers(self) -> list[str]:
        """What is still held. All caches are closed."""


class OurLevels:
    def __init__(self, tokens_per_block: int, pages: int, host_pages: int, *, shares_parts: bool = False) -> None:
        whole = Pool(0, pages, host_pages)
        sliding = Pool(1, pages, host_pages)  # the pools are named by their groups
        self.runtime = Runtime(tokens_per_block, list(SLIDING), [whole, sliding], shares_parts=shares_parts)
        self.has_host = host_pages > 0
        self.order: Order = AsEnqueued()
        self._given = 0

    def begin(self, move: Callable[[str, int, int, int], None], wait: Callable[[], object]) -> None:
        """It copies by what it notes, and waits for nothing."""

    def take_moves(self) -> list[Move]:
        found = [move for pool in self.runtime.pools for move in pool.moves]
        for pool in self.runtime.pools:
            pool.moves.clear()
        return found

    def adjust(self) -> bool:
        """Gives a page of the one group to the other, and back the next time."""
        giver, taker = self.runtime.pools if self._given == 0 else reversed(self.runtime.pools)
        if not giver.fits(giver.slots - 1):
            return False
        giver.resize(giver.slots - 1)
        taker.resize(taker.slots + 1)
        self._given = 1 - self._given
        return True

    def leftovers(self) -> list[str]:
        return [
            f"group {pool.window}: {len(pool.free)} free and {len(pool.idle)} idle of {pool.slots}"
            for pool in self.runtime.pools
            if len(pool.free) + len(pool.idle) != pool.slots or any(page.holders or page.locks for page in pool.idle)
        ]


class Books:
    """What the stand-in's manager calls its runtime."""

    def __init__(self, tokens_per_block: int, levels: Levels) -> None:
        self.tokens_per_block = tokens_per_block
        self.levels = levels
        self.caches: dict[int, LentCache] = {}

    def create_kv_cache(self, cache_id: int, tokens: list[int], salt: int | None = None) -> "LentCache":
        cache = self.levels.runtime.create_kv_cache(salt, tokens[:-1])  # the last one is computed for its answer
        self.caches[cache_id] = LentCache(cache, tokens, self.tokens_per_block, lambda: self.caches.pop(cache_id))
        return self.caches[cache_id]

    def pages_of(self, cache_id: int, pool: int = 0) -> list[int]:
        return self.caches[cache_id].pages(pool)


class LentCache:
    """A cache of the runtime, as the stand-in's manager calls its own."""

    def __init__(self, cache: Any, prompt: list[int], size: int, forget: Callable[[], object]) -> None:
        self._cache, self._prompt, self._size, self._forget = cache, prompt, size, forget

    def pages(self, pool: int) -> list[int]:
        """A page that the window has passed may be held until it is committed. Nobody reads it."""
        found = [int(page) for page in self._cache.get_aggregated_page_indices(pool)]
        passed = min(len(found), SLIDING[pool].get_stale_range(self._cache.history_length, self._size).end)
        return [BAD_PAGE] * passed + found[passed:]

    def get_base_page_indices(self, pool: int) -> list[int]:
        theirs = getattr(self._cache, "get_base_page_indices", None)
        return self.pages(pool) if theirs is None else list(theirs(pool))

    @property
    def capacity(self) -> int:
        return int(self._cache.capacity)

    @property
    def history_length(self) -> int:
        return int(self._cache.history_length)

    @property
    def is_active(self) -> bool:
        return bool(self._cache.is_active)

    @property
    def num_committed_tokens(self) -> int:
        return int(self._cache.num_committed_tokens)

    def set_base_page_index_buf(self, beam: int, pool: int, buffer: memoryview | None) -> None:
        row = None if buffer is None else buffer.cast("B").cast("i")
        self._cache.set_base_page_index_buf(beam, pool, row)

    set_page_index_buf = set_base_page_index_buf  # its earlier name

    def resize(self, capacity: int) -> bool:
        return bool(self._cache.resize(capacity))

    def slide(self, history: int) -> None:
        if history > self._cache.history_length:
            assert self._cache.resize(None, history)

    def commit(self, computed: int) -> None:
        self._cache.commit(self._prompt[self.num_committed_tokens : computed])

    def get_scratch_desc(self, pool: int) -> tuple[int, int, list[int]]:
        return pool, pool + 2, [pool, pool + 1]

    def suspend(self) -> None:
        self._cache.suspend()

    def resume(self, stream: int) -> bool:
        return bool(self._cache.resume(stream))

    def close(self, *_: Any) -> None:
        self._cache.close()
        self._forget()
