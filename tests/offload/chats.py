"""Conversations whose turns come back, cancelled now and then, more than both tiers hold. Every request brings a token
that no other has, and some begin with the same words.

What happens is decided in the executor's own thread, between two of its iterations, so nothing races but the device.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from .stand_in import OffloadServer

MARKERS = 100_000  # above any token that is sampled
RUN_S_MAX = 600.0
HISTORY_MAX = 64
CANCELLED_SHARE = 0.04
OPEN_MAX = 10


@dataclass
class Chat:
    history: list[int]
    request_id: int | None = None  # the turn that is being answered


@dataclass
class Chats:
    server: OffloadServer
    requests: int
    seed: int
    disturb: Callable[[random.Random], None] = lambda _: None  # called before every iteration
    answered: int = 0
    cancelled: int = 0
    _sent: int = 0
    _random: random.Random = field(init=False)
    _cancels: random.Random = field(init=False)  # its own: how often `disturb` draws is up to the device
    _chats: list[Chat] = field(init=False)
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._random, self._cancels = random.Random(self.seed), random.Random(self.seed)
        self._chats = [Chat(opening(number)) for number in range(24)]

    def run(self) -> None:
        """Runs until all requests are answered and nothing is being saved; raises what ended the loop, if anything
        did."""
        executor = self.server.executor
        with self.server.pauses.at(self.server.pauses.CALL_SCHEDULE, self._between):
            executor.enqueue_cancel_request(0)  # wakes a loop that has nothing to do
            until = monotonic() + RUN_S_MAX
            while not self._over.wait(0.1):
                if not executor.worker_thread.is_alive():
                    raise executor.event_loop_error
                assert monotonic() < until, f"{self._sent} sent, these do not end: {executor.active_requests}"
        with executor.response_cv:
            assert executor.response_cv.wait_for(
                lambda: not executor.async_transfer_manager.requests_in_transfer(), RUN_S_MAX
            )

    def _between(self) -> None:
        self.disturb(self._random)
        self._collect()
        open_chats = sum(chat.request_id is not None for chat in self._chats)
        while self._sent < self.requests and open_chats < OPEN_MAX:
            self._send(self._random.choice([chat for chat in self._chats if chat.request_id is None]))
            open_chats += 1
        if not open_chats:
            self._over.set()

    def _send(self, chat: Chat) -> None:
        self._sent += 1
        chat.request_id = self._sent
        if len(chat.history) > HISTORY_MAX:
            chat.history = opening(MARKERS + self._sent)
        chat.history += [MARKERS + self._sent, *range(self._random.randrange(6))]
        request = self.server.request(self._sent, list(chat.history), self._random.randrange(1, 9))
        self.server.executor.enqueue_requests([request])
        if self._cancels.random() < CANCELLED_SHARE:
            self.server.executor.enqueue_cancel_request(self._sent)

    def _collect(self) -> None:
        responses = self.server.executor.responses
        for chat in self._chats:
            response = responses.pop(chat.request_id, None)
            if response is None:
                continue
            chat.request_id = None
            chat.history += response.tokens
            if response.error_msg is None:
                self.answered += 1
            else:
                assert response.error_msg == "cancelled", response.error_msg
                self.cancelled += 1


def opening(number: int) -> list[int]:
    """Half of the conversations begin alike."""
    return [7, 7, 7, 7, 7, 1000 + number] if number % 2 else [1000 + number, *range(1, 9)]
