"""When a server ends with an error, the flight record is written, and an error of ours is shown in one line.

The record is a JSON file. Upstream's exception passes through unchanged. Late builds kill a rank that has peers before
the loop's wrapper raises, so the record is written where the loop itself ends.

An error of ours, below `run` or the hook, is shown as the command line shows it. It has gone through upstream's code,
perhaps through its worker, so its traceback says nothing about the cause, and upstream may have put an exception of its
own around it. A program that calls `trtllm_kvfix.enable()` itself gets tracebacks as always.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from trtllm_kvfix import runtime_files
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import described, kind_of, log
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.overlay.fix import Replacement, Seam
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR, Upstream
from trtllm_kvfix.runtime_files import folder_of

if TYPE_CHECKING:
    from trtllm_kvfix.overlay.activation import Activation


TRIGGER = PY_EXECUTOR
LOOP = "PyExecutor._event_loop_wrapper"
SUFFIX = ".flight.json"
KEPT_MAX = 16  # of ended processes

Loop = Callable[..., Any]


def replacements(active: "Activation") -> list[Replacement]:
    return [Replacement(Seam(TRIGGER, LOOP), partial(recording, active))] if Upstream().has(TRIGGER, LOOP) else []


def recording(active: "Activation", original: Loop) -> Loop:
    def _event_loop_wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen: list[BaseException] = []  # the first says why; what upstream's handling of it raises does not
        put_back = _around_the_loop(self, lambda error: _dump(active, error, seen))
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            _dump(active, error, seen)
            raise
        finally:
            put_back()

    return _event_loop_wrapper


def _around_the_loop(executor: Any, failed: Callable[[BaseException], None]) -> Callable[[], None]:
    """The executor calls its loop by an attribute of its own. A build that does it in another way has the wrapper
    alone."""
    try:
        loop: Loop = vars(executor)["event_loop"]

        @wraps(loop)
        def event_loop(*args: Any, **kwargs: Any) -> Any:
            try:
                return loop(*args, **kwargs)
            except BaseException as error:
                failed(error)
                raise

        executor.event_loop = event_loop
    except Exception as error:
        log.warning("the executor's loop is not where it was known to be: %s", described(error))
        return lambda: None

    def put_back() -> None:
        with suppress(Exception):
            if executor.event_loop is event_loop:
                executor.event_loop = loop

    return put_back


def _dump(active: "Activation", error: BaseException, seen: list[BaseException]) -> None:
    if seen:
        return
    seen.append(error)
    flight.note(flight.LOOP_FAILED, text=kind_of(error))
    try:
        file = write(folder_of(active.settings), described(error))
    except Exception as failure:
        log.error("the flight record could not be written", error=failure)
    else:
        log.error("the executor's loop ended with %s; the flight record is in %s", kind_of(error), file)


def write(folder: Path, why: str) -> Path:
    document = {**runtime_files.Owner.ours()._asdict(), "why": why, "entries": flight.recorder().entries()}
    return runtime_files.write(folder, SUFFIX, document, kept_max=KEPT_MAX)


Hook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def show_our_errors() -> None:
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
