"""Our lines in the application's log. They are written from inside its loop, so no line of ours may end it.

The application may have filters that want fields which our records lack, handlers whose disk is full, exceptions whose
text cannot be made. Some end at a record of a certain level, and some libraries' timeouts are no `Exception`. Where
logging raises, the line goes to standard error instead; only Ctrl-C passes.
"""

import logging
import sys
from contextlib import suppress
from typing import Any

TEXT_MAX = 300


class Log:
    """A logger that raises nothing. A test requires that no other module asks `logging` for one."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, text: str, *values: Any) -> None:
        self._write(logging.INFO, text, values)

    def warning(self, text: str, *values: Any) -> None:
        self._write(logging.WARNING, text, values)

    def error(self, text: str, *values: Any, error: BaseException | None = None) -> None:
        """`error`: the exception whose traceback belongs to the line."""
        self._write(logging.ERROR, text, values, error)

    def show(self) -> None:
        """Our lines go to stderr unless the application has set up logging; it may also have chosen a level."""
        logger = self._logger
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        if logger.handlers or logging.getLogger().handlers:
            return
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[trtllm-kvfix] [%(process)d] %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False

    def _write(self, level: int, text: str, values: tuple[Any, ...], error: BaseException | None = None) -> None:
        try:
            self._logger.log(level, text, *values, exc_info=error, stacklevel=3)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            with suppress(Exception, SystemExit):
                said = text % values if values else text
                print(f"[trtllm-kvfix] {said} (the log did not take this: {described(failure)})", file=sys.stderr)  # noqa: T201


def described(error: BaseException) -> str:
    """Kind and text of an exception, whatever its `__str__` does."""
    kind = kind_of(error)
    try:
        return f"{kind}: {error}"[:TEXT_MAX]
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return f"{kind}: its text cannot be made ({kind_of(failure)})"


def kind_of(error: BaseException) -> str:
    """Read where it lies: a metaclass may answer for it."""
    return str(type.__dict__["__name__"].__get__(type(error)))


log = Log("trtllm_kvfix")
offload_log = Log("trtllm_kvfix.offload")
