"""Tensors on the simulated device for self-tests, with as much of torch's interface as the fixes use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native
from trtllm_kvfix.hazards.case import Arm, played
from trtllm_kvfix.staging import on_stream

POOLS, ROWS, PLANES, BLOCKS = SHAPE = (2, 4, 2, 8)
WORD_BYTES = 4

Array = npt.NDArray[Any]


class HostTensor:
    """Pinned memory that a copy or kernel reads when the stream gets there."""

    def __init__(self, device: native.Device, memory: native.PinnedArray, array: Array) -> None:
        self.memory = memory
        self._device = device
        self._array = array
        self.shape = array.shape

    def numpy(self) -> Array:
        return self._array

    def data_ptr(self) -> int:
        return int(self._array.__array_interface__["data"][0])

    def numel(self) -> int:
        return int(self._array.size)

    def tolist(self) -> Any:
        return self._array.tolist()

    def __getitem__(self, index: Any) -> "HostTensor":
        return HostTensor(self._device, self.memory, self._array[index])

    def new_empty(self, shape: tuple[int, ...], pin_memory: bool) -> "HostTensor":
        require(pin_memory, "what a kernel reads has to be pinned")
        memory = self._device.pinned(shape, "int32")
        return HostTensor(self._device, memory, memory.array)

    def is_pinned(self) -> bool:
        return True


class DeviceTensor:
    def __init__(self, memory: native.DeviceArray) -> None:
        self.memory = memory

    def data_ptr(self) -> int:
        return self.memory.address


def trial(build: Callable[[native.Device], Arm], times: int = 1) -> None:
    """A fix's self-test: the arm that it protects, on a simulated device. Raises AssertionError if it does not hold."""
    arm = build(native.open_device("cpu"))
    try:
        for _ in range(times):
            found, waited = played(arm, held(arm.device, arm.held))
            require(waited, "what had to wait for the device did not wait")
            wrong = int(np.count_nonzero(found.expected != found.found))
            require(wrong == 0, f"{wrong} of {found.expected.size} words arrived as they were written after the call")
    finally:
        arm.settle()
        arm.close()


@contextmanager
def held(device: native.Device, stream: int) -> Iterator[None]:
    """Hold the work that is enqueued inside until the block ends."""
    gate = device.close_gate(stream)
    try:
        yield
    finally:
        device.open_gate(gate)


class Bench:
    """A stream that can be held, a live table and a destination."""

    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self.stream = self.device.create_stream()
        self.table = self.pinned(SHAPE)
        self.output = DeviceTensor(self.device.empty(SHAPE, "int32"))

    def pinned(self, shape: tuple[int, ...]) -> HostTensor:
        memory = self.device.pinned(shape, "int32")
        return HostTensor(self.device, memory, memory.array)

    def write(self, seed: int) -> Array:
        """Replace the table's contents; returns a copy of them."""
        contents = np.random.default_rng(seed).integers(1, 1000, SHAPE, np.int32)
        self.table.numpy()[...] = contents
        return contents

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the work that is enqueued inside until the block ends, and finish it before the block is left."""
        with held(self.device, self.stream), on_stream(self.device, self.stream):
            yield
        self.device.synchronize(self.stream)

    def arrived(self) -> Array:
        return self.device.download(self.output.memory, self.stream)


def require(holds: bool, what: str) -> None:
    """An assertion that optimised Python keeps."""
    if not holds:
        raise AssertionError(what)
