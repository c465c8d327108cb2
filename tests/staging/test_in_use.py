"""Memory that is kept for one engine's work does not depend on another engine's."""

import weakref
from collections import deque

import pytest

from trtllm_kvfix import native
from trtllm_kvfix.staging import MovableMark, in_use


class Memory:
    pass


def mark_behind(device: native.Device, stream: int) -> MovableMark:
    mark = MovableMark(device, stream)
    mark.record()
    return mark


def test_memory_behind_work_that_failed_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_kept", deque())
    monkeypatch.setattr(in_use, "_lost", [])
    device = native.open_device("cpu")
    failed = mark_behind(device, device.create_stream())

    def done() -> bool:
        raise native.DeviceError("its stream has failed")

    monkeypatch.setattr(failed, "done", done)
    lost, kept = Memory(), Memory()
    of_lost, of_kept = weakref.ref(lost), weakref.ref(kept)
    in_use.keep(failed, lost)
    stream = device.create_stream()
    mark = mark_behind(device, stream)
    mark.wait()
    in_use.keep(mark, kept)
    del lost, kept, mark
    assert of_lost() is not None, "the device may still use it"
    assert of_kept() is None
