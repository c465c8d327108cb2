"""The part of `.impl` that answers questions: those of statistics, and those of capacity schedulers."""

import threading
from typing import Any

from trtllm_kvfix.managers import statistics
from trtllm_kvfix.managers.books import Books
from trtllm_kvfix.managers.layout import Layout
from trtllm_kvfix.managers.locks import locked
from trtllm_kvfix.managers.memory import Memory
from trtllm_kvfix.managers.questions import Questions
from trtllm_kvfix.native import BlockManager


class Asked:
    core: BlockManager
    layout: Layout
    tokens_per_block: int
    _books: Books
    _lock: threading.RLock
    _memory: Memory
    _questions: Questions

    # ---- numbers: asking for them admits no request, so it does not matter which rank asks, or when ----

    @locked
    def get_kv_cache_stats(self) -> statistics.CacheStats:
        sizes = [window.size for window in self.layout.windows]
        return statistics.cache_stats(self.core.get_kv_cache_stats(), sizes, self._memory.device_bytes)

    @locked
    def get_iteration_stats(self) -> dict[int, statistics.IterationStats]:
        """Events are counted over all windows, and shown with the largest one."""
        stats = self.core.get_kv_cache_stats()
        *smaller, largest = self.layout.windows
        slot_bytes = sum(pool.slot_bytes for pool in self.layout.pools) if not smaller else 0  # they differ
        found = {each.size: statistics.iteration_stats(stats, each.index, None, 0) for each in smaller}
        return found | {largest.size: statistics.iteration_stats(stats, largest.index, stats.iteration, slot_bytes)}

    # ---- questions of capacity schedulers ----

    def start_scheduling(self) -> None:
        with self._lock:
            self._books.settle()
            self._books.end_copies()

    @locked
    def get_remaining_blocks_to_completion(self, req: Any, window_size: int, cached_summary: Any = None) -> int:
        del cached_summary
        return self._questions.to_completion(req)[self.layout.window_of(window_size).index]

    @locked
    def get_remaining_blocks_to_completion_batch(self, requests: list[Any], window_size: int) -> list[int]:
        index = self.layout.window_of(window_size).index
        return [self._questions.to_completion(each)[index] for each in requests]

    @locked
    def get_needed_blocks_one_step(
        self, req: Any, two_steps_look_ahead: bool, window_size: int, cached_summary: Any = None
    ) -> int:
        del cached_summary
        return self._questions.one_step(req, self.layout.window_of(window_size), two_steps=two_steps_look_ahead)

    @property
    def questions(self) -> Questions:
        """The answers that our own capacity scheduler needs."""
        return self._questions
