"""NIXL agents of the raw adapter are made without a metadata listener, whose fixed port collides on one host (H6)."""

import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any

SWITCH = "enable_listen_thread"


def without_listener(modules: Collection[str], original: Callable[..., None]) -> Callable[..., None]:
    """`__init__` of the agent configuration: called from one of these modules, it leaves the listener off.

    The adapter imports NIXL inside its functions, so there is no name in its module to replace; who calls is what tells
    its configurations from everybody else's.
    """
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  it becomes one
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller in modules:
            bound = signature.bind(self, *args, **kwargs)
            bound.arguments[SWITCH] = False
            args, kwargs = bound.args[1:], bound.kwargs
        original(self, *args, **kwargs)

    return __init__
