"""Objects that are kept by somebody else, listed for as long as they live."""

import threading
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    """Any thread may add while others list: a process may have several engines, and a `WeakSet` may not change while
    it is read."""

    def __init__(self) -> None:
        self._references: tuple[weakref.ref[T], ...] = ()  # replaced as a whole, so that readers need no lock
        self._lock = threading.Lock()  # guards the replacement

    def add(self, new: T) -> None:
        with self._lock:
            self._references = (*(each for each in self._references if each() is not None), weakref.ref(new))

    def all(self) -> list[T]:
        return [living for each in self._references if (living := each()) is not None]
