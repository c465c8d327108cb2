"""What is asked of devices from Python, heard before it happens: by their methods, and by marks that wait natively."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias
from unittest import mock

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place

Mark: TypeAlias = int | native.StreamMarks  # an event, or an event for each of some streams


class Listener(Protocol):
    def records(self, device: native.Device, mark: Mark) -> None: ...
    def waits(self, device: native.Device, mark: Mark) -> None: ...
    def synchronizes(self, device: native.Device) -> None: ...


@contextmanager
def heard(by: Listener) -> Iterator[None]:
    record, wait, synchronize = native.Device.record, native.Device.wait, native.Device.synchronize
    record_marks, wait_for_marks = native.StreamMarks.record, native.StreamMarks.wait
    last_of: dict[native.StreamMarks, native.Device] = {}

    def recording(device: native.Device, event: int, stream: int) -> None:
        by.records(device, event)
        record(device, event, stream)

    def waiting(device: native.Device, event: int) -> None:
        by.waits(device, event)
        wait(device, event)

    def synchronizing(device: native.Device, stream: int) -> None:
        by.synchronizes(device)
        synchronize(device, stream)

    def recording_marks(marks: native.StreamMarks) -> None:
        last_of[marks] = current_place().device
        by.records(last_of[marks], marks)
        record_marks(marks)

    def waiting_for_marks(marks: native.StreamMarks) -> float:
        if marks in last_of and not marks.done():
            by.waits(last_of[marks], marks)
        return wait_for_marks(marks)

    with (
        mock.patch.multiple(native.Device, record=recording, wait=waiting, synchronize=synchronizing),
        mock.patch.multiple(native.StreamMarks, record=recording_marks, wait=waiting_for_marks),
    ):
        yield
