"""The service by which other machines reach this one's host tier, in threads of its own (surface 7.3)."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class RemoteG2Service:
    """Answers in a thread of its own; what it calls is the bound manager, past any Python subclass."""

    requires_retryable_kv_admission = True
    requires_disable_overlap_scheduler = True
    requires_uniform_attention_window = True

    def __init__(self, impl: Any, rank: int) -> None:
        self.impl = impl
        self._asked: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._answer, name=f"remote_g2_zmq_rep_r{rank}", daemon=True)
        self._thread.start()

    def resolve_and_lease(self, block_hashes: list[int], window_size: int) -> "Future[Any]":
        return self._ask(lambda: self.impl.find_and_pin_blocks_by_hash(block_hashes, window_size, "any"))

    def acquire_pin(self, block_ids: list[int]) -> "Future[Any]":
        return self._ask(lambda: self.impl.pin_blocks_by_id(block_ids))

    def release(self, block_ids: list[int]) -> "Future[Any]":
        return self._ask(lambda: self.impl.unpin_blocks_by_id(block_ids))

    def stop(self) -> None:
        self._asked.put(None)
        self._thread.join()

    def _ask(self, work: Callable[[], Any]) -> "Future[Any]":
        answer: Future[Any] = Future()
        self._asked.put((work, answer))
        return answer

    def _answer(self) -> None:
        while (asked := self._asked.get()) is not None:
            work, answer = asked
            try:
                answer.set_result(work())
            except Exception as error:  # the asker gets it
                answer.set_exception(error)


def maybe_start_remote_g2_service(kv: Any, rank: int = 0) -> RemoteG2Service:
    """Learns the window from the statistics, whose deltas nobody else sees then."""
    impl = getattr(kv, "impl", kv)
    impl.get_unique_secondary_pool()
    impl.get_iteration_stats()
    return RemoteG2Service(impl, rank)
