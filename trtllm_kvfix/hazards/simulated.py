"""Tensors on the simulated device for self-tests, with as much of torch's interface as the fixes use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native
from trtllm_kvfix.hazards.case import Arm, played
from trtllm_kvfix.hazards.ground import held, let_go_in_time

Array = npt.NDArray[Any]

HANGS_AFTER_S = 10.0  # a slow machine must not fail a self-test


class HostTensor:
    """Pinned memory that a copy or kernel reads when the stream gets there."""

    def __init__(self, device: native.Device, memory: native.PinnedArray, array: Array) -> None:
        self.memory = memory
        self._device = device
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def stride(self) -> tuple[int, ...]:
        return tuple(each // self._array.itemsize for each in self._array.strides)

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
    with build(native.open_device("cpu")) as arm:
        for _ in range(times):
            found, waited = played(arm, _held(arm))
            require(waited, "what had to wait for the device did not wait")
            wrong = int(np.count_nonzero(found.expected != found.found))
            require(wrong == 0, f"{wrong} of {found.expected.size} words arrived as they were written after the call")


@contextmanager
def _held(arm: Arm) -> Iterator[None]:
    """A fix that fails here takes a fallback that waits for the stream, for ever if nobody lets it go."""
    with let_go_in_time(held(arm.device, arm.held), HANGS_AFTER_S) as too_late:
        yield
    require(not too_late.is_set(), "the call waited for work of the device that it was to leave alone")


def require(holds: bool, what: str) -> None:
    """An assertion that optimised Python keeps."""
    if not holds:
        raise AssertionError(what)
