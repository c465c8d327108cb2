"""int32 tensors over `trtllm_kvfix.native` memory, with as much of torch's interface as upstream's statements need."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place

Array = npt.NDArray[np.int32]
WORD_BYTES = 4


class Home:
    """A device, and what its pending copies read.

    torch's host allocator gives a block that a copy reads to nobody else before the copy is done, so upstream may drop
    a tensor behind `copy_`. It knows nothing of kernels that read host memory (hazard H2).
    """

    def __init__(self, device: native.Device) -> None:
        self.device = device
        self._pending: deque[tuple[int, Any]] = deque()  # an event, and the memory to keep until it is done
        self._lock = threading.Lock()  # guards `_pending`: one process may have several engines
        self._captures = threading.local()  # of each thread: copies that are taken down instead of enqueued

    @contextmanager
    def capturing(self) -> Iterator[list[tuple[int, int, int]]]:
        """Takes down this thread's copies."""
        copies = self._captures.copies = []
        try:
            yield copies
        finally:
            self._captures.copies = None

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        captured = getattr(self._captures, "copies", None)
        if captured is not None:
            captured.append((dst, src, nbytes))
        else:
            self.device.copy(dst, src, nbytes, stream)

    def keep_while_pending(self, memory: Any, stream: int) -> None:
        event = self.device.create_event()
        self.device.record(event, stream)
        over = []  # let go of behind the lock: the end of memory may wait for the device
        with self._lock:
            self._pending.append((event, memory))
            while self._pending and self.device.done(self._pending[0][0]):
                over.append(self._pending.popleft())
        for done, _ in over:
            self.device.destroy_event(done)


class Storage(NamedTuple):
    memory: Any

    def data_ptr(self) -> int:
        return int(self.memory.address)


class Tensor:
    """A view of some memory. `_view` has its shape and strides; where the memory is a device's, nobody looks inside."""

    def __init__(self, home: Home, memory: Any, view: Array, base: int) -> None:
        self.home = home
        self.memory = memory
        self._view = view
        self._base = base  # of `memory`, in the address space of `_view`

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.shape

    @property
    def dtype(self) -> str:
        return "int32"

    def numel(self) -> int:
        return int(self._view.size)

    def stride(self) -> tuple[int, ...]:
        strides = [each // WORD_BYTES for each in self._view.strides]
        return tuple(strides)  # of a generator, Python makes a larger one first

    def element_size(self) -> int:
        return WORD_BYTES

    def is_contiguous(self) -> bool:
        return bool(self._view.flags.c_contiguous)

    def size(self, dimension: int) -> int:
        return int(self._view.shape[dimension])

    def __len__(self) -> int:
        return len(self._view)

    def data_ptr(self) -> int:
        return self._pointer(self._view)

    def _pointer(self, view: Array) -> int:
        return int(self.memory.address) + _address(view) - self._base

    def untyped_storage(self) -> Storage:
        return Storage(self.memory)

    def __getitem__(self, key: Any) -> Any:
        return type(self)(self.home, self.memory, self._view[key], self._base)

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        """Asynchronous wherever a device takes part: the source is read when the current stream comes to it."""
        if self.shape != source.shape:
            raise ValueError(f"a tensor of shape {source.shape} does not go into one of shape {self.shape}")
        if isinstance(self, HostTensor) and isinstance(source, HostTensor) and not self.on_stream_only:
            self.numpy()[...] = source.numpy()
            return self
        stream = current_place().stream
        for mine, theirs in _runs(self._view, source._view):
            self.home.copy(self._pointer(mine), source._pointer(theirs), mine.nbytes, stream)
        self.home.keep_while_pending((self.memory, source.memory), stream)
        if not non_blocking:
            self.home.device.synchronize(stream)
        return self


class HostTensor(Tensor):
    """Pinned memory. Views share it and keep it alive, as torch's do."""

    # Memory that plays a device's: the host may not touch it, so copies to and from it go through the stream.
    on_stream_only = False
    is_cuda = False

    @classmethod
    def fresh(cls, home: Home, shape: Sequence[int]) -> "HostTensor":
        memory = home.device.pinned(shape, "int32")
        return cls(home, memory, memory.array, _address(memory.array))

    def numpy(self) -> Array:
        return self._view

    def __dlpack__(self, **options: Any) -> Any:
        return self._view.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._view.__dlpack_device__()

    def is_pinned(self) -> bool:
        return True

    def tolist(self) -> Any:
        return self._view.tolist()

    def __setitem__(self, key: Any, values: Any) -> None:
        self._view[key] = values.numpy() if hasattr(values, "numpy") else values

    def fill_(self, value: int) -> "HostTensor":
        self._view[...] = value
        return self

    def zero_(self) -> "HostTensor":
        return self.fill_(0)

    def clone(self) -> "HostTensor":
        return self.new_empty(self.shape).copy_(self)  # type: ignore[no-any-return]

    def new_empty(self, shape: Sequence[int], pin_memory: bool = True) -> "HostTensor":
        assert pin_memory, "all host memory here is pinned"
        return type(self).fresh(self.home, shape)


class PlaysDevice(HostTensor):
    """Pinned memory that only the stream touches."""

    on_stream_only = True


class DeviceTensor(Tensor):
    @classmethod
    def fresh(cls, home: Home, shape: Sequence[int]) -> "DeviceTensor":
        # The address space of the view is nobody's memory: it serves to count strides.
        view = np.empty(shape, np.int32)
        return cls(home, home.device.empty(shape, "int32"), view, _address(view))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _runs(mine: Array, theirs: Array) -> Iterator[tuple[Array, Array]]:
    """Two views of one shape, cut into pieces that are contiguous in both."""
    if mine.flags.c_contiguous and theirs.flags.c_contiguous:
        yield mine, theirs
    else:
        for one, other in zip(mine, theirs, strict=True):
            yield from _runs(one, other)
