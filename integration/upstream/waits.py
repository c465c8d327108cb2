"""The overlay waits for the late device natively; here, too, whoever waits lets run what was enqueued before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.standin.heard import Mark, heard
from trtllm_kvfix import native

if TYPE_CHECKING:
    from integration.upstream.late import LateDevice


class _Letting:
    def __init__(self, late: "LateDevice") -> None:
        self._late = late
        self._marks: dict[Mark, int] = {}  # everything before a mark lies behind gates up to this number

    def records(self, device: native.Device, mark: Mark) -> None:
        if device is self._late.device:
            self._marks[mark] = self._late.mark()

    def waits(self, device: native.Device, mark: Mark) -> None:
        if device is self._late.device:
            self._late.release(self._marks.get(mark))

    def synchronizes(self, device: native.Device) -> None:
        if device is self._late.device:
            self._late.release()


@contextmanager
def awaited(late: "LateDevice") -> Iterator[None]:
    """Inside, an event of the late device that the host waits for opens the gates before it, as torch's does.

    Other devices, such as those of self-tests, are waited for as they are.
    """
    submit, wait_for = native.CopyEngine.submit, native.CopyEngine.wait
    copies: dict[tuple[int, int], int] = {}  # everything before one lies behind gates up to this number

    def submitting(engine: native.CopyEngine, *args: Any, **named: Any) -> int:
        number = submit(engine, *args, **named)
        copies[id(engine), number] = late.mark()
        return number

    def letting_copies(engine: native.CopyEngine, transfer: int) -> None:
        late.release(copies.get((id(engine), transfer)))
        wait_for(engine, transfer)

    with (
        heard(_Letting(late)),
        mock.patch.object(native.CopyEngine, "submit", submitting),
        mock.patch.object(native.CopyEngine, "wait", letting_copies),
    ):
        yield
