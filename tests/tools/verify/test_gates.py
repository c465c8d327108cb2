"""Gates: opened in any case, and by a watchdog where nobody else could."""

import gc
from collections.abc import Iterator

import pytest

from trtllm_kvfix.hazards.ground import Watchdog, held, let_go_in_time
from trtllm_kvfix.hazards.h1_block_offsets_v1.device import InPlace, RefilledTable
from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.tools.verify.cases import StuckBehindGate, run_iteration


@pytest.fixture
def device() -> Device:
    return open_device("cpu")


@pytest.fixture
def stream(device: Device) -> Iterator[int]:
    stream = device.create_stream()
    yield stream
    device.destroy_stream(stream)


def test_a_gate_holds_until_its_block_ends(device: Device, stream: int) -> None:
    event = device.create_event()
    with Watchdog(10) as watchdog:
        with watchdog.holding(held(device, stream)):
            device.record(event, stream)
            assert not device.done(event)
        device.synchronize(stream)
    assert device.done(event)
    device.destroy_event(event)


def test_a_gate_is_opened_at_the_end_of_its_block_even_by_an_error(device: Device, stream: int) -> None:
    with Watchdog(10) as watchdog:
        with pytest.raises(ZeroDivisionError), watchdog.holding(held(device, stream)):
            raise ZeroDivisionError
        device.synchronize(stream)


class Stuck(RefilledTable):
    def disturb(self) -> None:
        self.device.synchronize(self.held)  # only the watchdog can end this


def test_the_watchdog_opens_a_gate_that_the_host_waits_behind(device: Device) -> None:
    with Watchdog(0.02) as watchdog, pytest.raises(StuckBehindGate, match="waited for a held stream"):
        run_iteration(watchdog, Stuck(device, 0, InPlace(device)), 1)


def hold(watchdog: Watchdog, device: Device, stream: int, *, looks: int) -> bool:
    with watchdog.holding(held(device, stream)):
        for _ in range(looks):
            watchdog.look()
    return watchdog.too_late.is_set()


def test_two_gates_one_after_the_other_are_not_taken_for_one(device: Device, stream: int) -> None:
    watchdog = Watchdog(10)
    assert not any(hold(watchdog, device, stream, looks=1) for _ in range(3))
    assert hold(watchdog, device, stream, looks=2)


def test_a_stream_that_a_loop_waits_for_is_let_go_in_time(device: Device, stream: int) -> None:
    with let_go_in_time(held(device, stream)) as let_go:
        assert not let_go.is_set()
        device.synchronize(stream)  # only the other thread can end this
        assert let_go.is_set()
    with pytest.raises(ZeroDivisionError), let_go_in_time(held(device, stream)) as let_go:
        raise ZeroDivisionError
    device.synchronize(stream)
    assert not let_go.is_set()


class Freed:
    """Pinned memory of an earlier arm, in a circle: a driver waits for all streams before it frees such memory."""

    def __init__(self, device: Device, stream: int) -> None:
        self.device, self.stream, self.itself = device, stream, self

    def __del__(self) -> None:
        self.device.synchronize(self.stream)


def test_nothing_is_collected_behind_a_gate(device: Device, stream: int) -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(10)
    try:
        with Watchdog(0.5) as watchdog, watchdog.holding(held(device, stream)):
            Freed(device, stream)
            assert [[] for _ in range(100)]  # enough for a collection
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert gc.isenabled()
