"""Threads take turns on a bound class. Interleavings are chosen by events; a watchdog ends what hangs."""

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.threads import run_together
from trtllm_kvfix import native
from trtllm_kvfix.fixes.concurrent_pins.fix import Turns
from trtllm_kvfix.metrics import counters

WATCHDOG_S = 30.0


run = partial(run_together, join_s=WATCHDOG_S)


class Bound:
    """A core whose admission calls back into Python, as upstream's asks the connector from inside."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.overlaps = 0
        self.callback: Callable[[], None] = lambda: None

    def add_sequence(self) -> None:
        with self._entered("add_sequence"):
            self.callback()

    def pin_blocks_by_id(self, ids: list[int]) -> list[int]:
        with self._entered("pin"):
            return ids

    def fail(self) -> None:
        raise KeyError("no such request")

    @contextmanager
    def _entered(self, name: str) -> Iterator[None]:
        self.inside.append(name)
        self.overlaps += len({*self.inside}) > 1
        yield
        self.inside.pop()


def guarded_class(turns: Turns) -> type[Bound]:
    names = ("add_sequence", "pin_blocks_by_id", "fail")
    return type("Guarded", (Bound,), {name: turns.guarded(getattr(Bound, name)) for name in names})


def await_queued(turns: Turns, count: int) -> None:
    while turns.stats().queued < count:
        pass


@pytest.mark.parametrize("guarded", [False, True])
def test_a_pin_waits_for_the_admission_that_is_inside(guarded: bool) -> None:
    turns = Turns()
    bound = guarded_class(turns)() if guarded else Bound()
    admitting, pinned = threading.Event(), threading.Event()

    def callback() -> None:
        admitting.set()
        if guarded:
            await_queued(turns, 1)
        else:
            assert pinned.wait(WATCHDOG_S)

    def pin() -> None:
        assert admitting.wait(WATCHDOG_S)
        assert bound.pin_blocks_by_id([7]) == [7]
        pinned.set()

    bound.callback = callback
    run(bound.add_sequence, pin)
    assert (bound.overlaps > 0) != guarded


def test_a_callback_may_call_the_manager_again() -> None:
    bound = guarded_class(Turns())()
    bound.callback = lambda: None if bound.pin_blocks_by_id([1]) == [1] else pytest.fail("lost the result")
    run(bound.add_sequence)


def test_a_callback_gets_the_gil_while_another_thread_waits_for_its_turn() -> None:
    """The waiting thread must not hold the GIL: if it did, nothing here would run again, this thread included."""
    turns = Turns()
    bound = guarded_class(turns)()
    admitting = threading.Event()
    steps: list[int] = []

    def callback() -> None:
        admitting.set()
        await_queued(turns, 2)
        steps.extend(range(1000))  # any Python at all needs the GIL

    def pin() -> None:
        assert admitting.wait(WATCHDOG_S)
        bound.pin_blocks_by_id([1])

    bound.callback = callback
    run(bound.add_sequence, pin, pin)
    assert len(steps) == 1000


def test_a_call_that_raises_ends_its_turn() -> None:
    turns = Turns()
    bound = guarded_class(turns)()
    with pytest.raises(KeyError, match="no such request"):
        bound.fail()
    run(partial(bound.pin_blocks_by_id, [1]))
    assert turns.stats().turns == 2


def test_waits_and_pins_are_counted() -> None:
    turns = Turns()
    before = counters.read()
    pin = turns.guarded(lambda: None, counters.pins)
    holding = threading.Event()

    def hold() -> None:
        holding.set()
        await_queued(turns, 1)

    def wait_then_pin() -> None:
        assert holding.wait(WATCHDOG_S)
        pin()

    run(turns.guarded(hold), wait_then_pin)
    after = counters.read()
    assert after["pins"] - before["pins"] == 1
    assert after["lock_waits"] - before["lock_waits"] == 1
    assert after["lock_wait_seconds"] > before["lock_wait_seconds"]


def test_who_waits_for_long_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns(stall_s=0.001)
    said: list[str] = []
    heard = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            heard.set()

    def admit() -> None:
        holding.set()
        assert heard.wait(WATCHDOG_S)

    def pin_it() -> None: ...

    def wait_then_pin() -> None:
        assert holding.wait(WATCHDOG_S)
        turns.guarded(pin_it)()

    holding = threading.Event()
    listener = Listener()
    logging.getLogger("trtllm_kvfix").addHandler(listener)
    try:
        with caplog.at_level(logging.ERROR, logger="trtllm_kvfix"):
            run(turns.guarded(admit), wait_then_pin)
    finally:
        logging.getLogger("trtllm_kvfix").removeHandler(listener)
    assert "to call pin_it" in said[0] and "called by admit (" in said[0]


def test_a_call_is_passed_on_as_it_is() -> None:
    def told(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    class Told:
        method = Turns().guarded(told)
        of_class = classmethod(Turns().guarded(told))

    one: Any = Told()
    assert one.method() == ((one,), {})
    assert one.method(1, two=[2], three=3) == ((one, 1), {"two": [2], "three": 3})
    assert Told.method(one, 1) == ((one, 1), {}) and Told.of_class(1) == ((Told, 1), {})
    assert one.method.__self__ is one and one.method.__func__ is Told.method


def test_what_is_guarded_goes_with_its_class() -> None:
    """A class, its callable and the marks on it hold one another."""

    def left_alone() -> weakref.ref[Any]:
        guarded: Any = guarded_class(Turns())
        guarded.fail.__kvfix_original__ = guarded
        return weakref.ref(guarded)

    gone = left_alone()
    gc.collect()
    assert gone() is None


def test_a_report_that_fails_keeps_nobody_from_calling() -> None:
    turns, reported = native.TurnLock(), threading.Event()

    def report() -> None:
        reported.set()
        raise OSError("the log is full")

    def hold() -> None:
        holding.set()
        assert reported.wait(WATCHDOG_S)

    def wait_then_call() -> None:
        assert holding.wait(WATCHDOG_S)
        assert turns.guarded(lambda: 7, report, 0.001)() == 7

    holding = threading.Event()
    unraisable: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lambda what: unraisable.append(what.exc_value))
        run(turns.guarded(hold, report, 60.0), wait_then_call)
    assert {str(each) for each in unraisable} == {"the log is full"}


def stress(bound: Any, rounds: int) -> None:
    """Four threads that pin and unpin blocks while one of them would be the executor."""

    def pin() -> None:
        for number in range(rounds):
            bound.pin_blocks_by_id([number])

    run(pin, pin, pin, pin)


def test_four_threads_are_never_inside_together() -> None:
    turns = Turns()
    bound = guarded_class(turns)()
    stress(bound, 2000)
    assert bound.overlaps == 0 and bound.inside == []
    assert turns.stats().turns == 8000


def test_methods_of_a_nanobind_class_can_be_replaced_and_the_object_stays_bound() -> None:
    """Upstream's manager is such a class: replaced in its attributes, it still is what C++ takes."""
    turns = Turns()
    manager = native.BlockManager(native.BlockManagerConfig(tokens_per_block=4, blocks_primary=4))
    original = native.BlockManager.add_sequence
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(native.BlockManager, "add_sequence", turns.guarded(original))
        admission = manager.add_sequence(native.SequenceRequest(1, [1, 2, 3]))
        assert type(manager) is native.BlockManager and turns.stats().turns == 1
    assert admission.tokens_new == 3 and native.BlockManager.add_sequence is original
