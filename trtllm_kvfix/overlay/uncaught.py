"""An error of ours that ends a server below `run` or the hook is shown as the command line shows it: in one line.

The exception has gone through upstream's code, perhaps through its worker, so its traceback says nothing about the
cause, and upstream may have put an exception of its own around it. A program that calls `trtllm_kvfix.enable()` itself
gets tracebacks as always.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

from trtllm_kvfix.errors import KvfixError

Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def install() -> None:
    if getattr(sys.excepthook, "func", None) is not show:
        sys.excepthook = partial(show, sys.excepthook)


def show(others: Hook, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    ours = next((each for each in _chain(error) if isinstance(each, KvfixError)), None)
    if ours is None:
        others(kind, error, trace)
        return
    print(f"[trtllm-kvfix] error: {ours}", file=sys.stderr)  # noqa: T201  logging may be switched off
    raise SystemExit(ours.exit_code)  # the interpreter honours it here, too


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from. What was merely being handled at that time is no cause."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
