"""The part of `.impl` that answers: numbers for statistics, and what capacity schedulers ask."""

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

    # ---- numbers: asking for them admits nobody, so that it does not matter who asks when ----

    @locked
    def get_kv_cache_stats(self) -> statistics.CacheStats:
        return statistics.cache_stats(self.core.get_kv_cache_stats(), self.layout.window, self._memory.device_bytes)

    @locked
    def get_iteration_stats(self) -> dict[int, statistics.IterationStats]:
        slot_bytes = sum(pool.slot_bytes for pool in self.layout.pools)
        return {self.layout.window: statistics.iteration_stats(self.core.get_kv_cache_stats(), slot_bytes)}

    # ---- what capacity schedulers ask ----

    def start_scheduling(self) -> None:
        with self._lock:
            self._books.settle()
            self._books.end_copies()

    @locked
    def get_remaining_blocks_to_completion(self, req: Any, window_size: int, cached_summary: Any = None) -> int:
        del window_size, cached_summary
        return self._questions.to_completion(req)

    @locked
    def get_remaining_blocks_to_completion_batch(self, requests: list[Any], window_size: int) -> list[int]:
        del window_size
        return [self._questions.to_completion(each) for each in requests]

    @locked
    def get_needed_blocks_one_step(
        self, req: Any, two_steps_look_ahead: bool, window_size: int, cached_summary: Any = None
    ) -> int:
        del window_size, cached_summary
        return self._questions.one_step(req, two_steps=two_steps_look_ahead)

    @locked
    def find_new_context_block(self, unique_tokens: Any, llm_request: Any) -> tuple[int, ...] | None:
        """The tokens up to and with the first block that is not cached: they can be compared, and counted."""
        del unique_tokens  # the request has them
        block = self._questions.prefix_of(llm_request).first_new
        return None if block is None else tuple(llm_request.get_tokens(0)[: (block + 1) * self.tokens_per_block])

    @property
    def questions(self) -> Questions:
        """For the capacity scheduler of ours."""
        return self._questions
