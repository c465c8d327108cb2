"""Requests reach the executor through the queue that its loop asks, at chosen times."""

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from integration.upstream.parts import RequestQueueItem

if TYPE_CHECKING:
    from integration.upstream.server import Server


@dataclass
class Arrival:
    """A request, and the iteration in which it reaches the executor."""

    id: int
    prompt: list[int]
    new_tokens: int
    at: int = 0


class Starved(RuntimeError):
    """The loop goes round and nobody is answered."""


class Queue:
    """Hands out what is due at each iteration, and ends the loop when all have been answered."""

    def __init__(self, server: "Server", arrivals: list[Arrival], cancels: dict[int, list[int]]) -> None:
        self.server = server
        self.waiting = sorted(arrivals, key=lambda each: each.at)
        self.cancels = cancels
        self.canceled: list[int] = []
        self.pause = threading.Event()
        self.raw: queue.Queue[Any] = queue.Queue()
        self.iteration = 0

    def get_from_request_queue(self, _: Any) -> list[Any]:
        self.server.device.hold()
        item = RequestQueueItem
        due = [each for each in self.waiting if each.at <= self.iteration]
        self.waiting = [each for each in self.waiting if each.at > self.iteration]
        idle = not self.waiting and not self.server.executor.active_requests
        if idle:
            self.server.device.settle()  # idle: the device goes on by itself
        items = [item(id=each.id, request=self.server.request(each)) for each in due]
        items += [item(id=each, is_canceled_request=True) for each in self.cancels.get(self.iteration, [])]
        if idle and items:
            self.server.device.hold()  # for the first step, as for any other
        if idle and not items and not self._is_saving():
            items.append(item(id=-1, is_shutdown_request=True))
        if not idle or items:
            self.iteration += 1
        else:
            self.pause.wait(0.001)  # the connector's own threads are at work
        if self.iteration > self.server.iterations_max:
            raise Starved(f"after {self.iteration} iterations {len(self.server.executor.active_requests)} wait")
        return items

    def _is_saving(self) -> bool:
        """A connector is still saving what a request has left behind."""
        executor = vars(self.server.executor)
        if "async_transfer_manager" in executor:
            return bool(executor["async_transfer_manager"].has_any_inflight_requests())
        return bool(executor.get("ctx_in_transmission_requests"))

    def get_request_queue(self) -> "queue.Queue[Any]":
        return self.raw

    # An earlier era lets the queue fetch, and asks it what it has fetched.

    is_shutdown = False

    def fetch_new_requests(self, _: Any) -> list[Any]:
        found = []
        for each in self.get_from_request_queue(None):
            self.is_shutdown |= each.is_shutdown_request
            if each.is_canceled_request:
                self.canceled.append(each.id)
            elif not each.is_shutdown_request:
                found.append(each.request)
        return found

    @property
    def canceled_req_ids(self) -> list[int]:
        return self.canceled

    def get_canceled_req_ids(self) -> list[int]:
        return self.canceled

    def get_canceled_req_ids_size(self) -> int:
        return len(self.canceled)

    def clear_canceled_req_ids(self) -> None:
        self.canceled.clear()

    def update_waiting_queue(self) -> None:
        pass

    def get_expected_num_active_requests(self) -> int:
        return 0

    def get_waiting_queue_size(self) -> int:
        return 0
