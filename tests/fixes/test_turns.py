"""Threads take turns on a bound class. Interleavings are chosen by events; a watchdog ends what hangs."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.fixes.faults import failing
from tests.threads import run_together
from trtllm_kvfix import native
from trtllm_kvfix.fixes.concurrent_pins.fix import ID, Turns
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse

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
    assert "to call pin_it" in said[0] and "admit (" in said[0]


def test_the_lock_is_of_one_thread() -> None:
    lock = native.TurnLock()
    assert lock.acquire(0.0) and lock.acquire(0.0)

    def elsewhere() -> None:
        assert not lock.acquire(0.0)
        with pytest.raises(RuntimeError, match="does not hold it"):
            lock.release()

    run(elsewhere)
    lock.release()
    lock.release()

    def afterwards() -> None:
        assert lock.acquire(0.0)
        lock.release()

    run(afterwards)


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


def test_who_waits_for_a_turn_that_is_never_given_back_goes_on_by_the_plain_lock() -> None:
    """A turn that could not be given back is held for ever; those that wait for it do without turns from then on."""
    fuse.reset(ID)
    turns = Turns(stall_s=0.01)
    done: list[str] = []

    def waiting() -> None:
        turns.guarded(lambda: done.append("second"))()

    def inside() -> None:
        second.start()
        while turns.stats().queued == 0:
            second.join(0.001)

    second = threading.Thread(target=waiting, daemon=True)
    with failing("native.TurnLock.release", always=False):
        turns.guarded(inside)()
    second.join(WATCHDOG_S)
    assert done == ["second"]
    assert fuse.of(ID).blown and fuse.of(ID).faults == 1
    fuse.reset(ID)


def test_a_call_without_a_turn_does_not_wait_from_inside_for_one_that_waits_for_it() -> None:
    """The first call gets in by the plain lock alone. The second has the turn, waits for the plain lock, and stays."""
    fuse.reset(ID)
    turns = Turns(stall_s=1.0)
    done: list[str] = []

    def inside() -> None:
        second.start()
        while turns.stats().depth == 0:
            second.join(0.001)
        for _ in range(2):  # the end of the first must not lift what holds for the call around them
            turns.guarded(lambda: done.append("inner"))()

    def first() -> None:
        turns.guarded(inside)()
        second.join(WATCHDOG_S)
        before = turns.stats().turns
        turns.guarded(lambda: None)()
        assert turns.stats().turns == before + 1, "a later call of the thread has its turn"

    with failing("native.TurnLock.acquire", always=False):
        second = threading.Thread(target=turns.guarded(lambda: done.append("second")), daemon=True)
        run(first)
    assert done == ["inner", "inner", "second"]
    assert fuse.of(ID).faults == 1 and not fuse.of(ID).blown
    fuse.reset(ID)
