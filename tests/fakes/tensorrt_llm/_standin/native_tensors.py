"""Tensors on `trtllm_kvfix.native` devices, simulated or real."""

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place, on_stream

from .tensors import Shape

WORD_BYTES = 4
Array = npt.NDArray[np.int32]


class HostTensor:
    """Pinned int32 memory, or a view of some. Views share the memory and keep it alive, as torch's do."""

    def __init__(self, memory: native.PinnedArray, array: Array) -> None:
        self.memory = memory
        self._array = array

    def numpy(self) -> Array:
        return self._array

    @property
    def shape(self) -> Shape:
        return self._array.shape

    def data_ptr(self) -> int:
        return int(self._array.__array_interface__["data"][0])

    def is_pinned(self) -> bool:
        return True

    def tolist(self) -> Any:
        return self._array.tolist()

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> "HostTensor":
        return HostTensor(self.memory, np.asarray(self._array[key]))

    def __setitem__(self, key: Any, values: Any) -> None:
        self._array[key] = values.numpy() if hasattr(values, "numpy") else values


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

    def record(self, stream: Any = None) -> None:
        self.device.record(self.handle, current_place().stream if stream is None else stream.cuda_stream)

    def synchronize(self) -> None:
        self.device.wait(self.handle)

    def query(self) -> bool:
        return self.device.done(self.handle)

    def __del__(self) -> None:
        self.device.destroy_event(self.handle)


class NativeTensors:
    def __init__(self, device: native.Device) -> None:
        self.device = device
        # torch's host allocator gives a block that a copy reads to nobody else before the copy is done, so upstream may
        # drop a tensor behind `copy_`. It knows nothing of kernels that read host memory (surface 2.4, hazard H2).
        self._read_by_copies: deque[tuple[NativeEvent, HostTensor]] = deque()

    @staticmethod
    def open(name: str, seed: int = 0) -> "NativeTensors":
        return NativeTensors(native.open_device(name, seed))

    def pinned(self, shape: Shape) -> HostTensor:
        memory = self.device.pinned(shape, "int32")
        return HostTensor(memory, memory.array)

    def on_device(self, shape: Shape) -> native.DeviceArray:
        return self.device.empty(shape, "int32")

    def copy_rows(self, dst: native.DeviceArray, host: HostTensor, rows: int, width: int) -> None:
        pools, rows_max, planes, blocks = dst.shape
        for pool in range(pools):
            to = dst.address + pool * rows_max * planes * blocks * WORD_BYTES
            source = host.numpy()[pool]
            if width == blocks == source.shape[2]:
                self._copy(to, source, rows * planes * blocks)
                continue
            for row in range(rows):
                for plane in range(planes):
                    self._copy(to + (row * planes + plane) * blocks * WORD_BYTES, source[row, plane], width)
        self._keep_until_read(host)

    def copy_head(self, dst: native.DeviceArray, host: HostTensor, count: int) -> None:
        self._copy(dst.address, host.numpy(), count)
        self._keep_until_read(host)

    def copy_item(self, dst: Any, dst_index: int, src: Any, src_index: int) -> None:
        words = int(np.prod(dst.shape[1:]))
        to, source = self._address(dst), self._address(src)
        nbytes = words * WORD_BYTES
        self.device.copy(to + dst_index * nbytes, source + src_index * nbytes, nbytes, current_place().stream)

    def read_back(self, src: native.DeviceArray) -> HostTensor:
        host = self.pinned(tuple(src.shape))
        self.device.copy(host.data_ptr(), src.address, src.nbytes, current_place().stream)
        self._keep_until_read(host)
        return host

    def gather_rows(
        self,
        dst: native.DeviceArray,
        table: HostTensor,
        copy_index: HostTensor,
        rows: int,
        scale: list[int],
        v_offset: list[int],
        stream: int,
    ) -> None:
        width = dst.shape[3]
        self.device.gather_host_rows(dst, table.memory, copy_index.memory, rows, width, scale, v_offset, stream)

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

    def close_gate(self, stream: Any) -> int:
        return self.device.close_gate(stream.cuda_stream)

    def open_gate(self, gate: int) -> None:
        self.device.open_gate(gate)

    def _copy(self, to: int, source: Array, words: int) -> None:
        address = int(source.__array_interface__["data"][0])
        self.device.copy(to, address, words * WORD_BYTES, current_place().stream)

    def _keep_until_read(self, host: HostTensor) -> None:
        while self._read_by_copies and self._read_by_copies[0][0].query():
            self._read_by_copies.popleft()
        event = NativeEvent(self.device)
        event.record()
        self._read_by_copies.append((event, host))

    @staticmethod
    def _address(tensor: Any) -> int:
        return tensor.data_ptr() if isinstance(tensor, HostTensor) else int(tensor.address)
