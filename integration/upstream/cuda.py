"""`torch.cuda` over the late device: streams, events, and who is current."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from integration.upstream import graphs, late
from integration.upstream.late import LateDevice
from integration.upstream.late_torch import LateTorch
from integration.upstream.parts import nothing
from integration.upstream.waits import awaited
from trtllm_kvfix.staging import on_stream


class Stream:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = late.late().new_stream()

    def wait_stream(self, other: "Stream") -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)

    def wait_event(self, event: "Event") -> None:
        late.late().device.make_wait(self.cuda_stream, event.handle)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        late.late().settle(self.cuda_stream)


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.handle = late.late().device.create_event()
        self._mark: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        device = late.late()
        device.device.record(self.handle, (stream or current_stream()).cuda_stream)
        self._mark = device.mark()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """The host waits, so what lies before the event runs; what was enqueued behind it need not."""
        if self._mark is None:
            return
        late.late().release(self._mark)
        late.late().device.wait(self.handle)

    def query(self) -> bool:
        return self._mark is None or late.late().device.done(self.handle)

    def elapsed_time(self, other: "Event") -> float:
        del other
        return 0.0


_local = threading.local()
_default: list[Stream] = []


def current_stream(*_: Any) -> Stream:
    stack = getattr(_local, "streams", None)
    found: Stream = stack[-1] if stack else _default[-1]
    return found


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    if chosen is None:
        yield
        return
    if not hasattr(_local, "streams"):
        _local.streams = []
    _local.streams.append(chosen)
    try:
        with on_stream(late.late().device, chosen.cuda_stream):
            yield
    finally:
        _local.streams.pop()


@contextmanager
def simulated() -> Iterator[LateDevice]:
    """Inside, torch has a CUDA device whose work is done late. This thread's current stream is the default one."""
    device = LateDevice()
    late._current.append(device)
    _default.append(Stream())
    replaced = {
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": current_stream,
        "default_stream": lambda *_: _default[-1],
        "set_stream": lambda chosen: None if chosen is current_stream() else _default.append(chosen),
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda *_: None,
        "synchronize": lambda *_: device.settle(),
        "CUDAGraph": graphs.Graph,
        "graph": graphs.capture,
        "is_current_stream_capturing": graphs.is_capturing,
        "mem_get_info": lambda *_: (1 << 34, 1 << 35),
        "empty_cache": lambda: None,
    }
    # What a torch with CUDA has besides, and asks a driver for.
    shortcuts = {
        "_cuda_getCurrentRawStream": lambda index: current_stream(index).cuda_stream,
        "_cuda_getDevice": lambda: 0,
    }
    depth = len(_default)
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name, value in shortcuts.items():
            stack.enter_context(mock.patch.object(torch._C, name, value, create=True))
        for name in ("range", "range_push", "range_pop"):
            stack.enter_context(mock.patch.object(torch.cuda.nvtx, name, nothing))
        stack.enter_context(awaited(device))
        stack.enter_context(on_stream(device.device, _default[-1].cuda_stream))
        stack.enter_context(LateTorch())
        try:
            yield device
        finally:
            device.settle()
            del _default[depth - 1 :]
            late._current.remove(device)
            late._kept.clear()
