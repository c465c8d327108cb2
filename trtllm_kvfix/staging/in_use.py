"""Memory that enqueued work still uses, kept by the process until a mark behind that work has been passed.

It outlives the fix that has enqueued the work: a fix may be taken off while streams are held. torch's host allocator
knows of its own copies, but neither of a kernel's reads nor of copies of ours.
"""

import threading
from collections import deque
from typing import Any, Protocol

from trtllm_kvfix.native import DeviceError


class EndOfUse(Protocol):
    def done(self) -> bool:
        """Whether the device has passed the work."""


_kept: deque[tuple[EndOfUse, Any]] = deque()
_lost: list[tuple[EndOfUse, Any]] = []  # behind work that has failed: nobody knows when it is over
_lock = threading.Lock()  # engines have threads: between a look at the head and taking it, the head stays


def keep(behind: EndOfUse, memory: Any) -> None:
    over = []  # dropped without the lock: the end of memory may wait for the device
    with _lock:
        _kept.append((behind, memory))
        while _kept:
            try:
                if not _kept[0][0].done():
                    break
                over.append(_kept.popleft())
            except DeviceError:  # of another engine's stream, perhaps: this caller has nothing to do with it
                _lost.append(_kept.popleft())
