"""V2's runtime where one of its two layer groups has a window. Pages, and what is committed of them, are those of the
rig's runtime, which is compared with upstream's own (integration/upstream/test_v2_compared.py)."""

from typing import Any

from integration.upstream.v2_pages import LifeCycle, Pool
from integration.upstream.v2_runtime import Runtime


class SlidingRuntime:
    def __init__(self, tokens_per_block: int, pages: int, window: int, *, reuse: bool, shares_parts: bool) -> None:
        self.tokens_per_block, self._reuses = tokens_per_block, reuse
        cycles = [LifeCycle(None), LifeCycle(window)]
        pools = [Pool(group, pages, 0) for group in range(len(cycles))]
        self._runtime = Runtime(tokens_per_block, cycles, pools, shares_parts=shares_parts)
        self._caches: dict[int, SlidingCache] = {}

    @property
    def layer_grouping(self) -> list[list[int]]:
        return self._runtime.layer_grouping

    def stale(self, group: int, history: int) -> tuple[int, int]:
        begin, end = self._runtime.stale(history)[group]
        return begin, end

    def window_of(self, group: int) -> int | None:
        return self._runtime.cycles[group].window_size

    def free_blocks(self) -> int:
        return min(self._runtime.witness_free(pool.window) for pool in self._runtime.pools)

    def probe_reuse(self, tokens: list[int], salt: int | None) -> int:
        return self._runtime.probe_reuse(salt, tokens)

    def create_kv_cache(
        self, cache_id: int, tokens: list[int], salt: int | None = None, matching: list[int] | None = None
    ) -> "SlidingCache | None":
        """Active, with the pages of its match. None where there is no room for these."""
        made = SlidingCache(self, cache_id, tokens, self._runtime.create_kv_cache(salt, matching))
        if not made.resume(0):
            made.close()
            return None
        if not self._reuses:
            made.cache.stop_committing()
        self._caches[cache_id] = made
        return made

    def pages_of(self, cache_id: int, pool: int = 0) -> list[int]:
        """As the table has them: a page that the window has passed may be held until it is committed."""
        return list(self._caches[cache_id].cache.witness_row(pool))

    def forget(self, cache_id: int) -> None:
        self._caches.pop(cache_id, None)


class SlidingCache:
    """A cache of the rig's runtime, as the stand-in's manager calls its own."""

    def __init__(self, runtime: SlidingRuntime, cache_id: int, prompt: list[int], cache: Any) -> None:
        self._runtime, self._cache_id, self._prompt, self.cache = runtime, cache_id, prompt, cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def set_base_page_index_buf(self, beam: int, pool: int, buffer: memoryview | None) -> None:
        self.cache.set_base_page_index_buf(beam, pool, None if buffer is None else buffer.cast("B").cast("i"))

    def commit(self, computed: int) -> None:
        if self._runtime._reuses:
            self.cache.commit(self._prompt[self.cache.num_committed_tokens : computed])
        else:
            assert self.cache.resize(None, computed)

    def close(self, *_: Any) -> None:
        """What was generated is not committed."""
        self.cache.close()
        self._runtime.forget(self._cache_id)
