"""The core takes calls from any thread; the notes between upstream's calls need a lock of their own.

Methods that run in every iteration take the lock themselves, without a wrapper around them.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from trtllm_kvfix.managers.books import Books


class Locked(Protocol):
    _lock: threading.RLock
    _books: Books


Method = TypeVar("Method", bound=Callable[..., Any])


def locked(method: Method) -> Method:

    @wraps(method)
    def call(self: Locked, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast("Method", call)


def answering(method: Method) -> Method:
    """For a call that needs an answer: noted requests are admitted first."""

    @wraps(method)
    def call(self: Locked, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._books.settle()
            return method(self, *args, **kwargs)

    return cast("Method", call)
