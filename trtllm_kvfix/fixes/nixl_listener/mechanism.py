"""NIXL agents of the raw adapter are made without a metadata listener, whose fixed port collides on one host (H6)."""

import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any

from trtllm_kvfix.overlay import fuse

ID = "nixl-listener"
SWITCH = "enable_listen_thread"


def without_listener(modules: Collection[str], original: Callable[..., None]) -> Callable[..., None]:
    """`__init__` of the agent configuration: called from one of these modules, it leaves the listener off.

    The adapter imports NIXL inside its functions, so there is no name in its module to replace. The caller's module
    distinguishes its configurations from all others. If our own code fails, upstream gets its arguments unchanged.
    """
    signature = inspect.signature(original)
    tried = fuse.of(ID)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  it becomes one
        given, failure = (args, kwargs), None
        if not tried.blown:
            try:
                if sys._getframe(1).f_globals.get("__name__") in modules:
                    given = _switched_off(signature, self, args, kwargs)
                    tried.in_a_row = 0
            except Exception as error:
                failure = error
        original(self, *given[0], **given[1])
        if failure is not None:  # arguments that upstream refuses are no fault of ours
            tried.fault(failure)

    return __init__


def _switched_off(
    signature: inspect.Signature, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = signature.bind(config, *args, **kwargs)
    bound.arguments[SWITCH] = False
    return bound.args[1:], bound.kwargs
