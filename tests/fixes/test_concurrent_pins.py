"""Pins of other threads on the stand-in's bound manager: torn without the turns, whole with them."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from types import ModuleType
from typing import Any

import pytest

from tests.executor.test_concurrent_pins import Scene
from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken, as_it_was
from trtllm_kvfix import native
from trtllm_kvfix.metrics import counters

WATCHDOG_S = 30.0
THREADS = 4
MEETING_S = 0.5  # how long one waits inside for the others; with turns they never come
ROUNDS = 200


class Meanwhile:
    """An action at a pause: starts `work` in a thread, and goes on when that is done or waits for its turn."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.thread = threading.Thread(target=work, daemon=True)
        self._started = False

    def __call__(self) -> None:
        if self._started:
            return
        self._started = True
        waits = counters.read()["lock_waits"]
        self.thread.start()
        while self.thread.is_alive() and counters.read()["lock_waits"] == waits:
            self.thread.join(0.001)

    def end(self) -> None:
        self.thread.join(WATCHDOG_S)
        assert not self.thread.is_alive(), "the second thread hangs"


@pytest.fixture(params=[False, True], ids=["as it is", "with turns"])
def guarded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def scene(guarded: bool) -> Iterator[Scene]:
    on: AbstractContextManager[object] = applied(["concurrent-pins"]) if guarded else nullcontext()
    with standing_in("C"), on:
        made = Scene()
        yield made
        made.server.close()


def test_two_pins_at_once_are_two_pins(scene: Scene, guarded: bool) -> None:
    second = Meanwhile(scene.pin_found)
    with scene.pauses.at(scene.pauses.PIN_COUNT_READ, second):
        scene.pin_found()
        second.end()
    assert (scene.impl.pin_counts == dict.fromkeys(scene.block_ids, 2)) == guarded


def test_calls_that_pin_and_unpin_are_counted_where_they_are_served(scene: Scene, guarded: bool) -> None:
    before = counters.read()
    scene.pin_found()
    scene.impl.unpin_blocks_by_id(scene.block_ids)
    with suppress(RuntimeError):
        scene.impl.unpin_blocks_by_id(scene.block_ids)  # refused: they are not pinned now
    after = counters.read()
    assert [after[name] - before[name] for name in ("pins", "unpins")] == ([1, 1] if guarded else [0, 0])


def test_a_block_that_was_found_is_pinned_before_another_request_takes_it(scene: Scene, guarded: bool) -> None:

    def fill() -> None:
        with suppress(native.OutOfBlocks):  # the pins hold what it wanted: they came first
            scene.fill()

    executor = Meanwhile(fill)
    with scene.pauses.at(scene.pauses.PIN_FOUND, executor):
        scene.pin_found()
        executor.end()
    assert (scene.impl.standin_torn_pins() == []) == guarded


def test_a_free_block_that_was_seen_is_taken_before_it_is_pinned(scene: Scene, guarded: bool) -> None:
    other = Meanwhile(scene.pin_found)
    with scene.pauses.at(scene.pauses.FREE_BLOCK_SEEN, other):
        scene.fill()
        other.end()
    assert (scene.impl.standin_torn_pins() == []) == guarded


def together(work: Callable[[], object]) -> list[BaseException]:
    """Runs `work` in four threads; returns what they raised."""
    errors: list[BaseException] = []

    def kept() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=kept, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return errors


def test_four_threads_pin(scene: Scene, guarded: bool) -> None:
    """Those that are inside together meet there, each with a count that it has read and not yet written."""
    meeting = threading.Barrier(THREADS)

    def meet() -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(MEETING_S if guarded else WATCHDOG_S)

    with scene.pauses.at(scene.pauses.PIN_COUNT_READ, meet):
        assert together(scene.pin_found) == []
    count = THREADS if guarded else 1
    assert scene.impl.pin_counts == dict.fromkeys(scene.block_ids, count)


@pytest.mark.parametrize("guarded", [True], indirect=True)  # unguarded, any end is possible
def test_four_threads_pin_and_unpin_for_long(scene: Scene) -> None:
    def pin_and_unpin() -> None:
        for _ in range(ROUNDS):
            scene.pin_found()
            scene.impl.get_kv_cache_stats()
            scene.impl.unpin_blocks_by_id(scene.block_ids)

    assert together(pin_and_unpin) == []
    assert scene.impl.pin_counts == {}


@pytest.mark.parametrize("variant", ["C"])
def test_reverted_it_tears_again(variant: str) -> None:
    with standing_in(variant):
        for on, whole in ((nullcontext(), False), (applied(["concurrent-pins"]), True), (nullcontext(), False)):
            with on:
                made = Scene()
                second = Meanwhile(made.pin_found)
                with made.pauses.at(made.pauses.PIN_COUNT_READ, second):
                    made.pin_found()
                    second.end()
                assert (made.impl.pin_counts == dict.fromkeys(made.block_ids, 2)) == whole
                made.server.close()


def test_the_bound_object_stays_what_it_is() -> None:
    """C++ constructors check the type; Python's schedulers take the object as it is."""
    with standing_in("C"):
        with applied(["concurrent-pins"]):
            made = Scene()
            bound = type(made.impl)
            assert made.server.executor.scheduler.capacity_scheduler.kv_cache_manager is made.impl
            made.server.close()
        assert type(made.impl) is bound
        assert not hasattr(bound.add_token, "__kvfix_fix__")


def test_a_connector_that_calls_the_manager_from_inside_an_admission_does_not_hang() -> None:
    """Another thread pins all the while, and waits without the GIL; a watchdog ends the test."""
    with standing_in("C"), applied(["concurrent-pins"]):
        made = Scene()
        answers: list[Any] = []

        class Connector:
            def get_num_new_matched_tokens(self, request: Any, computed: int) -> int:
                pinning()
                answers.append(made.impl.get_kv_cache_stats())
                answers.append(made.pin_found())
                made.impl.unpin_blocks_by_id(made.block_ids)
                del request, computed
                return 0

        pinning = Meanwhile(made.pin_found)
        made.impl._connector = Connector()
        other = made.server.request(2, list(range(1000, 1008)))
        admission = threading.Thread(target=lambda: made.impl.add_sequence_batch([(2, 8, 1)], [other]), daemon=True)
        admission.start()
        admission.join(WATCHDOG_S)
        assert not admission.is_alive(), "the admission hangs in its connector"
        pinning.end()
        assert len(answers) == 2
        made.server.close()


def test_the_bound_scheduler_takes_its_turn_too() -> None:
    """It gets the bound manager as an argument and reads its queues, past any method that Python can see."""

    class CapacityScheduler:
        def __call__(self, *requests: Any) -> tuple[Any, ...]:
            return requests

    with standing_in("C"):
        algorithms = ModuleType("tensorrt_llm.bindings.internal.algorithms")
        algorithms.CapacityScheduler = CapacityScheduler  # type: ignore[attr-defined]
        sys.modules[algorithms.__name__] = algorithms
        with applied(["concurrent-pins"]):
            assert hasattr(CapacityScheduler.__call__, "__kvfix_fix__")
            assert CapacityScheduler()(1, 2) == (1, 2)
        assert not hasattr(CapacityScheduler.__call__, "__kvfix_fix__")


# ---- for the tests of all fixes (proofs.py) ----

BROKEN = Broken("fixes.concurrent_pins.fix.Turns.guarded", as_it_was)


def pin_from_two_threads(place: Fault) -> None:
    """A second thread pins while the first has read a count and not written it."""
    del place
    scene = Scene()
    second = Meanwhile(scene.pin_found)
    with scene.pauses.at(scene.pauses.PIN_COUNT_READ, second):
        scene.pin_found()
        second.end()
    assert scene.impl.pin_counts == dict.fromkeys(scene.block_ids, 2)
    for _ in range(3):
        scene.impl.unpin_blocks_by_id(scene.block_ids)
        scene.pin_found()
    scene.server.close()


PLACES = (Fault("metrics.counters.pins", "C", pin_from_two_threads, stands_down=False),)
