"""Streams, events and allocation on a `trtllm_kvfix.native` device stand in for torch's CUDA."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place, on_stream

from .native_tensor import DeviceTensor, Home, HostTensor, PlaysDevice

_wait = native.Device.wait  # a test that watches the method sees the waits of others


class NativeStream:
    def __init__(self, device: native.Device, handle: int) -> None:
        self.device = device
        self.cuda_stream = handle

    def wait_stream(self, other: "NativeStream") -> None:
        event = NativeEvent(self.device)
        event.record(other)
        self.wait_event(event)

    def wait_event(self, event: "NativeEvent") -> None:
        self.device.make_wait(self.cuda_stream, event.handle)

    def synchronize(self) -> None:
        self.device.synchronize(self.cuda_stream)


class NativeEvent:
    def __init__(self, device: native.Device) -> None:
        self.device = device
        self.handle = device.create_event()

    def record(self, stream: NativeStream | None = None) -> None:
        self.device.record(self.handle, current_place().stream if stream is None else stream.cuda_stream)

    def synchronize(self) -> None:
        _wait(self.device, self.handle)

    def query(self) -> bool:
        return self.device.done(self.handle)

    def __del__(self) -> None:
        self.device.destroy_event(self.handle)


class NativeGraph:
    def __init__(self, device: native.Device, copies: list[tuple[int, int, int]]) -> None:
        self.device = device
        self.handle = device.capture_copies(*zip(*copies, strict=True))

    def replay(self) -> None:
        self.device.launch_graph(self.handle, current_place().stream)

    def __del__(self) -> None:
        self.device.destroy_graph(self.handle)


class NativeTensors:
    def __init__(self, device_name: str) -> None:
        self.device = native.open_device(device_name)
        self._home = Home(self.device)

    def pinned(self, *shape: int) -> HostTensor:
        return HostTensor.fresh(self._home, shape)

    def on_device(self, *shape: int) -> DeviceTensor:
        return DeviceTensor.fresh(self._home, shape)

    def readable_on_device(self, *shape: int) -> HostTensor:
        """The kernel at hand reads its inputs from pinned memory only; that is written and read in stream order too."""
        return PlaysDevice.fresh(self._home, shape)

    def gather_rows(
        self,
        dst: DeviceTensor,
        table: HostTensor,
        copy_index: HostTensor,
        rows: int,
        scale: Sequence[int],
        v_offset: Sequence[int],
        stream: int,
    ) -> None:
        width = dst.shape[3]
        whole, pools = tuple(table.memory.shape), len(scale)
        if tuple(dst.memory.shape) == tuple(dst.shape) and whole == tuple(table.shape):
            at = (rows, width, scale, v_offset, stream)
            self.device.gather_host_rows(dst.memory, table.memory, copy_index.memory, *at)
            return
        # The kernel at hand takes whole tensors: all pools go to memory of its own, and from there what was asked for.
        assert pools == 1 == len(dst), "slices of one pool"
        first = (table.data_ptr() - table.memory.address) // (table.numel() * table.element_size())
        scratch = self.device.empty((whole[0], rows, 2, width), "int32")
        at = (rows, width, list(scale) * whole[0], list(v_offset) * whole[0], stream)
        self.device.gather_host_rows(scratch, table.memory, copy_index.memory, *at)
        nbytes = scratch.nbytes // whole[0]
        self.device.copy(dst.data_ptr(), scratch.address + first * nbytes, nbytes, stream)
        self._home.keep_while_pending(scratch, stream)

    def stream(self) -> NativeStream:
        return NativeStream(self.device, self.device.create_stream())

    def external_stream(self, handle: int) -> NativeStream:
        return NativeStream(self.device, handle)

    def current_stream(self) -> NativeStream:
        return NativeStream(self.device, current_place().stream)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return on_stream(self.device, stream.cuda_stream)

    def event(self) -> NativeEvent:
        return NativeEvent(self.device)

    def capture(self, enqueue: Callable[[], None]) -> NativeGraph:
        with self._home.capturing() as copies:
            enqueue()
        return NativeGraph(self.device, copies)

    def close_gate(self, stream: Any) -> int:
        return self.device.close_gate(stream.cuda_stream)

    def open_gate(self, gate: int) -> None:
        self.device.open_gate(gate)
