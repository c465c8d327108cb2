"""Named points at which a test may step in: a thread that reaches one runs the action set there, in that thread.

Each server has points of its own, and its loop reaches those; threads that belong to no server reach the newest
server's.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# The host is about to enqueue the input copies of a forward step.
FORWARD = "forward"
FORWARD_DRAFT = "forward draft"
# The host is about to enqueue the writes of a step's keys and values; its inputs have been given to the device.
COMPUTE = "compute"
# The host is about to wait until the device has sampled.
WAIT_FOR_SAMPLE = "wait for sample"
# The loop is about to call _prepare_and_schedule_batch.
CALL_SCHEDULE = "call schedule"
# The host is about to wait for the input copies, where upstream does (surface 2.4).
WAIT_FOR_INPUT_COPY = "wait for input copy"
# The host is about to enqueue a graph; it is about to write the tables of LoRA that graphs read, and has written them.
REPLAY = "replay"
WRITE_LORA = "write lora"
LORA_WRITTEN = "lora written"

# The unlocked steps of pins (surface 4.4). In the thread that pins: a block was found, and is not counted yet; a count
# was read, and not written yet. In the executor's: a free block was seen, and not taken yet.
PIN_FOUND = "pin: found"
PIN_COUNT_READ = "pin: count read"
FREE_BLOCK_SEEN = "free block seen"


class Points:
    """The points of one server. The names above are found here, too."""

    def __init__(self) -> None:
        self._actions: dict[str, Callable[[], None]] = {}
        self._reached: Counter[str] = Counter()  # each point is reached by one thread

    def __getattr__(self, name: str) -> Any:
        if name.isupper():
            return globals()[name]
        raise AttributeError(name)

    def reached(self, point: str) -> int:
        """Counts how often it was reached, this time included, for the action that is set there."""
        return self._reached[point]

    def reach(self, point: str) -> None:
        self._reached[point] += 1
        action = self._actions.get(point)
        if action is not None:
            action()

    def may_be_reached_here(self) -> bool:
        """Whether this thread belongs to this server, or to none."""
        return of_thread() in (None, self)

    @contextmanager
    def at(self, point: str, action: Callable[[], None]) -> Iterator[None]:
        if point in self._actions:
            raise RuntimeError(f"an action is set at {point!r} already; actions do not stack")
        self._actions[point] = action
        try:
            yield
        finally:
            del self._actions[point]


_newest = Points()
_of_thread = threading.local()


def begin() -> Points:
    """Begins a server."""
    global _newest  # noqa: PLW0603
    _newest = Points()
    return _newest


def newest() -> Points:
    return _newest


@contextmanager
def reaching(points: Points) -> Iterator[None]:
    """This thread belongs to the server of these points."""
    _of_thread.points = points
    try:
        yield
    finally:
        del _of_thread.points


def of_thread() -> Points | None:
    return getattr(_of_thread, "points", None)


def reach(point: str) -> None:
    (of_thread() or _newest).reach(point)


def reached(point: str) -> int:
    return _newest.reached(point)


def at(point: str, action: Callable[[], None]) -> Any:
    return _newest.at(point, action)
