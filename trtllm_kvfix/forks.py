"""A child of fork() has its parent's objects as they were and its locks as they stood, and none of its other threads.

An object whose end calls the device, or waits for what another thread may hold, asks whether it is in a child, where it
does nothing. It asks for the process's number: Python ends objects of the threads that fork() did not copy before it
calls any handler for forks in the child.
"""

import os
import threading
from contextlib import AbstractContextManager

from trtllm_kvfix.living import Living


class HomeProcess:
    """The process in which an object was made."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def left(self) -> bool:
        return os.getpid() != self._pid


class ForkedLock:
    """A lock that a child has anew, whoever holds it in the parent: `with lock():`. It may be taken again inside.

    For what a child comes by without asking for us, such as an import of upstream's. What another thread was writing
    under the lock stays half written there.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __call__(self) -> AbstractContextManager[bool]:
        return self._lock

    def renew(self) -> None:
        self._lock = threading.RLock()


_all: Living[ForkedLock] = Living()


def _renew() -> None:
    for each in _all.all():
        each.renew()


os.register_at_fork(after_in_child=_renew)
