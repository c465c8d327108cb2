"""The machine holds work and lets it go, and nothing waits for ever."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtllm_kvfix.engine import machine as module
from trtllm_kvfix.engine.machine import Fence, Machine, open_machine
from trtllm_kvfix.errors import KvfixError, SettingsError


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = open_machine("cpu")
    yield machine
    machine.close()


def test_what_is_held_begins_when_somebody_waits_for_it(machine: Machine) -> None:
    done: list[str] = []
    first, second = Fence(machine, "the first"), Fence(machine, "the second")
    for name, fence in (("a", first), ("b", second)):
        machine.hold()
        machine.launch(lambda name=name: done.append(name))  # type: ignore[misc]
        fence.record()
    assert done == []
    first.wait()
    assert done == ["a"]
    second.wait()
    assert done == ["a", "b"]


def test_the_watchdog_comes_before_the_limit_of_a_wait() -> None:
    """It opens a gate that it has seen closed twice; a wait that ended earlier would blame the device."""
    assert module.WAIT_S_MAX > 2 * module.HELD_S_MAX


def test_a_wait_that_does_not_end_says_what_it_was_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S_MAX", 0.02)
    gate = machine.device.close_gate(machine.stream)  # by somebody else
    fence = Fence(machine, "the copy of a step's inputs")
    fence.record()
    with pytest.raises(KvfixError, match=r"simulated device, seed 0 has not ended the copy of a step's inputs within"):
        fence.wait()
    machine.device.open_gate(gate)
    monkeypatch.undo()
    fence.wait()


@pytest.mark.parametrize("ordered", [True, False])
def test_copies_begin_when_the_host_waits_for_what_they_stand_in_front_of(machine: Machine, ordered: bool) -> None:
    device = machine.device
    copies, idle = device.create_stream(), device.create_stream()
    machine.hold_copies(copies, in_front_of=machine.stream if ordered else idle)
    copied = device.create_event()
    device.record(copied, copies)
    if ordered:
        device.make_wait(machine.stream, copied)
    step = Fence(machine, "a step")
    step.record()
    step.wait()
    assert (device.done(copied), machine.holds_copies) == (ordered, not ordered)
    machine.hold_copies(copies, in_front_of=machine.stream)
    assert machine.holds_copies
    step.wait()
    assert machine.holds_copies, "a step before them does not let them go"
    machine.let_copies_go()


def test_a_gate_that_nobody_is_left_to_open_is_opened_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_S_MAX", 0.02)
    machine = open_machine("cpu")
    copies = machine.device.create_stream()
    machine.hold_copies(copies)
    machine.device.synchronize(copies)  # as a driver might
    machine.hold()
    machine.device.synchronize(machine.stream)
    with pytest.raises(KvfixError, match="waited for a stream that it held itself"):
        machine.check()
    machine.close()


def test_where_streams_wait_for_each_other_a_step_is_not_late_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_S_MAX_ON_GPU", 0.02)
    monkeypatch.setattr(module.Machine, "simulated", property(lambda _: False))
    machine = open_machine("cpu")
    machine.hold()
    machine.device.synchronize(machine.stream)
    machine.check()
    assert machine.opened_by_force == 1
    machine.close()


def done(how: str) -> None:
    raise ValueError(how)


def test_a_function_that_fails_is_raised_where_it_is_waited_for(machine: Machine) -> None:
    machine.launch(lambda: done("with it"))
    with pytest.raises(KvfixError, match="a forward pass failed: ValueError"):
        machine.settle()


def test_a_device_that_is_not_there_is_bad_usage() -> None:
    with pytest.raises(SettingsError, match="--device is 'abacus'"):
        open_machine("abacus")


def test_a_folder_of_numpy_may_have_a_space_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands with an engine ended with a traceback in a virtual environment of such a folder."""
    library = "/opt/my tools/env/numpy.libs/libscipy_openblas64_-1.so"
    lines = [
        "7f00-7f01 r--p 00000000 08:01 17   /lib/libc.so.6",
        "7f01-7f02 rw-p 00000000 00:00 0",
        f"7f02-7f03 r--p 00000000 08:01 18                       {library}",
        f"7f03-7f04 r-xp 00001000 08:01 18                       {library}",
        "7f04-7f05 r--p 00000000 08:01 19   /opt/old env/libopenblas.so.0 (deleted)",
        "7f05-7f06 r--p 00000000 08:01 20   /openblas.so/other.txt",
    ]
    maps = tmp_path / "maps"
    maps.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(module, "MAPS", maps)
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    module.use_one_thread.__wrapped__()
    assert loaded == [library]
