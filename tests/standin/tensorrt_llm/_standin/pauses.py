"""Named points at which a test may step in: a thread that reaches one runs the action set there, in that thread."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_actions: dict[str, Callable[[], None]] = {}
_reached: Counter[str] = Counter()  # since `begin`; each point is reached by one thread

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


def begin() -> None:
    """Begins a server: counts start anew."""
    _reached.clear()


def reached(point: str) -> int:
    """Counts how often it was reached, this time included, for the action that is set there."""
    return _reached[point]


def reach(point: str) -> None:
    _reached[point] += 1
    action = _actions.get(point)
    if action is not None:
        action()


@contextmanager
def at(point: str, action: Callable[[], None]) -> Iterator[None]:
    if point in _actions:
        raise RuntimeError(f"an action is set at {point!r} already; actions do not stack")
    _actions[point] = action
    try:
        yield
    finally:
        del _actions[point]
