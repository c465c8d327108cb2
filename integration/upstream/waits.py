"""The overlay waits for the late device natively; here, too, whoever waits lets run what was enqueued before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from trtllm_kvfix import native

if TYPE_CHECKING:
    from integration.upstream.late import LateDevice


@contextmanager
def awaited(late: "LateDevice") -> Iterator[None]:
    """Inside, an event of the late device that the host waits for opens the gates before it, as torch's does.

    Other devices, such as those of self-tests, are waited for as they are.
    """
    record, wait, synchronize = native.Device.record, native.Device.wait, native.Device.synchronize
    marks: dict[int, int] = {}  # by event: everything before it lies behind gates up to this number
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
        mock.patch.object(native.CopyEngine, "submit", submitting),
        mock.patch.object(native.CopyEngine, "wait", letting_copies),
    ):
        yield
