"""The overlay waits for the late device natively; here, too, whoever waits lets run what was enqueued before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place

if TYPE_CHECKING:
    from integration.upstream.late import LateDevice


@contextmanager
def awaited(late: "LateDevice") -> Iterator[None]:
    """Inside, an event of the late device that the host waits for opens the gates before it, as torch's does.

    Other devices, such as those of self-tests, are waited for as they are.
    """
    record, wait, synchronize = native.Device.record, native.Device.wait, native.Device.synchronize
    # By event, or by marks of streams: everything before it lies behind gates up to this number.
    marks: dict[int | native.StreamMarks, int] = {}
    record_marks, wait_for_marks = native.StreamMarks.record, native.StreamMarks.wait
    submit, wait_for = native.CopyEngine.submit, native.CopyEngine.wait
    copies: dict[tuple[int, int], int] = {}  # the same, by engine and transfer

    def noting(device: native.Device, event: int, stream: int) -> None:
        if device is late.device:
            marks[event] = late.mark()
        record(device, event, stream)

    def letting(device: native.Device, event: int) -> None:
        if device is late.device:
            late.release(marks.get(event))
        wait(device, event)

    def letting_all(device: native.Device, stream: int) -> None:
        if device is late.device:
            late.release()
        synchronize(device, stream)

    def noting_marks(of_streams: native.StreamMarks) -> None:
        if current_place().device is late.device:
            marks[of_streams] = late.mark()
        record_marks(of_streams)

    def letting_marks(of_streams: native.StreamMarks) -> float:
        if of_streams in marks and not of_streams.done():
            late.release(marks[of_streams])
        return wait_for_marks(of_streams)

    def submitting(engine: native.CopyEngine, *args: Any, **named: Any) -> int:
        number = submit(engine, *args, **named)
        copies[id(engine), number] = late.mark()
        return number

    def letting_copies(engine: native.CopyEngine, transfer: int) -> None:
        late.release(copies.get((id(engine), transfer)))
        wait_for(engine, transfer)

    with (
        mock.patch.object(native.Device, "record", noting),
        mock.patch.object(native.Device, "wait", letting),
        mock.patch.object(native.Device, "synchronize", letting_all),
        mock.patch.object(native.StreamMarks, "record", noting_marks),
        mock.patch.object(native.StreamMarks, "wait", letting_marks),
        mock.patch.object(native.CopyEngine, "submit", submitting),
        mock.patch.object(native.CopyEngine, "wait", letting_copies),
    ):
        yield
