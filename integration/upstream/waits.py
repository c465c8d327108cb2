"""The overlay waits for the late device natively; here, too, whoever waits lets run what was enqueued before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
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

    with (
        mock.patch.object(native.Device, "record", noting),
        mock.patch.object(native.Device, "wait", letting),
        mock.patch.object(native.Device, "synchronize", letting_all),
    ):
        yield
