"""Gates: opened in any case, and by a watchdog where nobody else could."""

import gc
from collections.abc import Iterator

import pytest

from trtllm_kvfix.hazards.ground import held, let_go_in_time
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
    with let_go_in_time(held(device, stream), 60) as let_go:
        device.record(event, stream)
        assert not device.done(event)
    device.synchronize(stream)
    assert device.done(event)
    assert not let_go.is_set()
    device.destroy_event(event)


def test_a_gate_is_opened_at_the_end_of_its_block_even_by_an_error(device: Device, stream: int) -> None:
    with pytest.raises(ZeroDivisionError), let_go_in_time(held(device, stream), 60):
        raise ZeroDivisionError
    device.synchronize(stream)


def test_the_watchdog_opens_a_gate_that_the_host_waits_behind(device: Device, stream: int) -> None:
    with let_go_in_time(held(device, stream), 0.02) as let_go:
        device.synchronize(stream)  # only the watchdog can end this
    assert let_go.is_set()


class Waiting(RefilledTable):
    def disturb(self) -> None:
        self.device.synchronize(self.held)


def test_an_iteration_that_waits_for_its_own_stream_is_stuck(device: Device) -> None:
    arm, event = Waiting(device, 0, InPlace(device)), device.create_event()
    with pytest.raises(StuckBehindGate, match=r"for more than 0\.02 s"):
        run_iteration(arm, event, 1, held_s_max=0.02)
    device.destroy_event(event)
    arm.close()


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
        with let_go_in_time(held(device, stream)):
            Freed(device, stream)
            assert [[] for _ in range(100)]  # enough for a collection
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert gc.isenabled()
