"""A line of ours in the log ends nothing, whatever the application has made of its logging."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from trtllm_kvfix.log import Log, described

NAME = "trtllm_kvfix.of_a_test"


class Refused(Exception):
    pass


class NoText(Exception):
    def __str__(self) -> str:
        raise Refused("no text")


def filter_for_fields(logger: logging.Logger) -> None:
    """As services with tenants have it: their records carry a field that ours lack."""

    def tenant_of(record: logging.LogRecord) -> bool:
        return bool(record.request_id)  # type: ignore[attr-defined]

    logger.addFilter(tenant_of)


def handler_that_raises(logger: logging.Logger) -> None:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(28, f"no space left for {record.msg}")

    logger.addHandler(Full())


def handler_that_ends_the_program(logger: logging.Logger) -> None:
    class Strict(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sys.exit(record.levelno)

    logger.addHandler(Strict())


def handler_that_is_out_of_time(logger: logging.Logger) -> None:
    class OutOfTime(BaseException):
        """As in some libraries for tasks."""

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OutOfTime(record.msg)

    logger.addHandler(Slow())


def factory_that_raises(_: logging.Logger) -> None:
    def make(*_args: Any, **_kwargs: Any) -> logging.LogRecord:
        raise Refused("no record")

    logging.setLogRecordFactory(make)


HOSTILE = (
    *(filter_for_fields, handler_that_raises, handler_that_ends_the_program, handler_that_is_out_of_time),
    factory_that_raises,
)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger, factory = logging.getLogger(NAME), logging.getLogRecordFactory()
    logger.propagate = False
    yield logger
    logging.setLogRecordFactory(factory)
    logger.handlers.clear()
    logger.filters.clear()


@pytest.mark.parametrize("make_hostile", HOSTILE, ids=lambda each: each.__name__)
def test_a_line_that_logging_refuses_goes_to_standard_error(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], make_hostile: Callable[[logging.Logger], None]
) -> None:
    make_hostile(logger)
    with pytest.raises(BaseException):  # noqa: B017, PT011
        logger.error("rank %d", 3)
    log = Log(NAME)
    log.info("rank %d is not shown at this level, or shown", 1)
    log.warning("rank %d of %d", 1, 2)
    log.error("rank %d ended", 3, error=NoText())
    said = capsys.readouterr().err
    assert "rank 1 of 2" in said and "rank 3 ended" in said
    assert "the log did not take this" in said


def test_nothing_is_raised_where_standard_error_is_closed(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler_that_raises(logger)
    closed = StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        Log(NAME).error("rank %d", 3)


def test_a_wrong_number_of_values_ends_nothing(logger: logging.Logger) -> None:
    handler_that_raises(logger)
    Log(NAME).error("rank %d of %d", 3)


def test_a_line_keeps_its_caller_and_its_traceback(logger: logging.Logger) -> None:
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger.addHandler(Keeping())
    error = ValueError("why")
    Log(NAME).error("rank %d", 3, error=error)
    (record,) = records
    assert record.getMessage() == "rank 3" and record.exc_info is not None and record.exc_info[1] is error
    assert Path(record.pathname).name == Path(__file__).name


def test_an_exception_without_a_text_is_described_by_its_kind() -> None:
    assert described(ValueError("why")) == "ValueError: why"
    assert described(NoText()) == "NoText: its text cannot be made (Refused)"
    assert len(described(ValueError("x" * 1000))) == 300


def test_an_exception_whose_class_has_no_name_is_described() -> None:
    class Nameless(type):
        def __getattribute__(cls, name: str) -> Any:
            raise Refused(name)

    class Ended(Exception, metaclass=Nameless):
        def __str__(self) -> str:
            raise asyncio.CancelledError

    assert described(Ended()) == "Ended: its text cannot be made (CancelledError)"


def test_ctrl_c_passes(logger: logging.Logger) -> None:
    class Interrupted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise KeyboardInterrupt(record.msg)

    logger.addHandler(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        Log(NAME).error("rank %d", 3)
