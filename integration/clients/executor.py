"""The clients run on the stand-in (`stand_in.py`) or on upstream's own source (`on_upstream.py`)."""

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from integration.clients.clients import TOKENS_PER_BLOCK, Client
from integration.clients.recorded import Calls

WAIT_S, LOOK_S = 120.0, 0.01  # KVBM's threads poll, and leave little to others where there are few cores


def hold_saves(hold: bool) -> None:
    """Copies from the device to the host wait in the doubled driver until they are let go."""
    ctypes.CDLL(None).double_hold_saves(int(hold))


class Executor(ABC):
    manager: Any  # upstream's, of the connector

    def __init__(self, client: Client, calls: Calls) -> None:
        self.client, self.calls = client, calls
        self.late_saves = False  # a client that saves untold has saved nothing when a request has long ended
        self.offered_early: list[int] = []  # of each request's tokens, when it had ended and its saves were held
        self._asked: list[int] = []

    # The duties of an executor.

    @abstractmethod
    def serve(self, request_id: int, prompt: list[int], new: int, salt: int | None, adapter: int | None) -> list[int]:
        """The new tokens, when no step is in flight and no blocks are kept for a save."""

    @abstractmethod
    def forget(self) -> None:
        """Empties what the device keeps for reuse."""

    @abstractmethod
    def corrupt(self) -> list[int]:
        """Requests whose attention has read something else than what was computed for their tokens."""

    @abstractmethod
    def device_blocks(self) -> int:
        """The device's blocks that somebody still holds."""

    # The methods that all of them share.

    @property
    def scheduler(self) -> Any:
        return self.manager.scheduler

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        for _ in range(int(WAIT_S / LOOK_S)):
            if holds():
                return
            threading.Event().wait(LOOK_S)
        raise TimeoutError(f"{what}: not within {WAIT_S} s; held are {self.held()}")

    def is_up(self) -> bool:
        """KVBM's leader goes on with its start when the constructor has returned, and panics when it is asked early."""
        try:
            self.client.entries(self.scheduler, 0)
        except BaseException as panic:
            if type(panic).__name__ != "PanicException":
                raise
            return False
        return True

    def ask(
        self, request_id: int, prompt: list[int], new: int, salt: int | None = None, adapter: int | None = None
    ) -> list[int]:
        if self.late_saves:
            hold_saves(True)
        tokens = self.serve(request_id, prompt, new, salt, adapter)
        self._asked.append(request_id)
        if self.client.offers is not None:
            self._wait_for_saves([*prompt, *tokens])
        return tokens

    def _wait_for_saves(self, tokens: list[int]) -> None:
        """The last token was never computed. What the next request is offered, and with it every later call, would else
        depend on how fast the client saves."""
        computed = len(tokens) - 1
        whole = computed // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
        assert whole < computed, f"{computed} tokens: KVBM saves a block when a token behind it is computed"
        if self.late_saves:
            self.offered_early.append(self._offers(tokens))
            hold_saves(False)
        self.wait_until(f"{whole} saved tokens", lambda: self._offers(tokens) == whole)

    def _offers(self, tokens: list[int]) -> int:
        assert self.client.offers is not None
        return self.client.offers(self.scheduler, tokens)

    def held(self) -> dict[str, int]:
        """Names what is still held of requests that have been answered, and by whom."""
        manager = self.manager
        lists = (manager.new_async_requests, manager.pending_async_requests, manager.local_finished_async_requests)
        return {
            "client": sum(self.client.entries(self.scheduler, request_id) for request_id in self._asked),
            "manager": sum(len(each.saving) + len(each.loading) for each in lists),
            "device": self.device_blocks(),
        }
