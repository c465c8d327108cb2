"""A device whose work is done late: torch on the CPU, with what CUDA would do behind gates on a simulated device.

Tensors on 'cuda' and pinned tensors live in memory of the simulated device. A copy between them is enqueued and reads
its source when the stream gets there, in stream order, together with what the overlay enqueues itself. The stream is
held as long as the host does not wait: whoever waits for an event or a stream lets everything run that was enqueued
before. So a copy that upstream does not wait for reads its source as late as the rules of CUDA allow.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place

native_wait = native.Device.wait  # without letting anything run that is held
_NATIVE_DTYPES = {torch.int32: "int32", torch.uint8: "uint8"}


class LateDevice:
    """Streams, gates and memory. One for each server."""

    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self._gates: dict[int, list[tuple[int, int]]] = {}  # by stream: (serial number, gate), oldest first
        self._serial = 0
        self._launched: list[tuple[int, Callable[[], None]]] = []  # kernels, by the gate behind which they lie
        self._before: dict[int, int] = {}  # by the gate of a kernel in stream order: the event in front of it
        self.settled: list[str] = []  # operations for which there is no late way; they waited for the stream

    def new_stream(self) -> int:
        handle = self.device.create_stream()
        self._gates[handle] = []
        return handle

    def hold(self) -> None:
        """Everything that follows on every stream stays enqueued until somebody waits."""
        self._serial += 1
        for stream, gates in self._gates.items():
            gates.append((self._serial, self.device.close_gate(stream)))

    def mark(self) -> int:
        """Everything enqueued so far lies behind gates up to this number."""
        return self._serial

    def launch(self, stream: int, kernel: Callable[[], None]) -> None:
        """A native kernel: it reads its inputs when the host lets the stream go on, before what follows it there."""
        del stream
        self._launched.append((self._serial, kernel))

    def run(self, stream: int, kernel: Callable[[], None]) -> None:
        """A kernel in stream order: what was enqueued before has run by then, and what follows waits for it."""
        event = self.device.create_event()
        self.device.record(event, stream)
        self._serial += 1
        self._before[self._serial] = event
        self._launched.append((self._serial, kernel))
        self._gates[stream].append((self._serial, self.device.close_gate(stream)))

    def release(self, up_to: int | None = None) -> None:
        """Runs everything up to this mark, in the order in which it was enqueued."""
        serials = {serial for gates in self._gates.values() for serial, _ in gates}
        for due in sorted(each for each in serials if up_to is None or each <= up_to):
            if due in self._before:
                native_wait(self.device, self._before.pop(due))
            kernels = [kernel for serial, kernel in self._launched if serial <= due]
            self._launched = [each for each in self._launched if each[0] > due]
            for kernel in kernels:
                kernel()
            for gates in self._gates.values():
                while gates and gates[0][0] <= due:
                    self.device.open_gate(gates.pop(0)[1])

    def settle(self, stream: int | None = None) -> None:
        """Wait for a stream: what it holds, and what others hold that it may wait for, runs first."""
        self.release()
        for each in self._gates if stream is None else (stream,):
            self.device.synchronize(each)


_current: list[LateDevice] = []


def late() -> LateDevice:
    return _current[-1]


class DeviceTensor(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A tensor of the simulated device. Its memory stays as long as it or a view of it lives."""

    memory: Any
    settled_by: ClassVar[set[str]] = set()

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def device(self) -> Any:
        return torch.device("cuda", 0)

    # The simulated device's memory is the host's; the extension reads and writes it as such.

    def __dlpack__(self, **given: Any) -> Any:
        return plain(self).__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return plain(self).__dlpack_device__()

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        enqueue_copy(self, source, non_blocking)
        return self

    def cpu(self) -> Any:
        late().settle()
        return plain(self).clone()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def item(self) -> Any:
        return self.cpu().item()

    def __getitem__(self, index: Any) -> Any:
        if any(isinstance(each, torch.Tensor) for each in (index if isinstance(index, tuple) else (index,))):
            return _later(torch.Tensor.__getitem__, (self, index), {})
        return plain(self)[index].as_subclass(DeviceTensor)

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].copy_(torch.as_tensor(value, dtype=self.dtype).expand(plain(self)[index].shape))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if name not in _VIEWS:
            made = _later(function, args, kwargs or {})
            if made is not NotImplemented:
                return made
            # No late way: the stream runs first. Upstream would not wait here, so this is kinder, and it is listed.
            if name not in late().settled:
                late().settled.append(name)
            late().settle()
        return super().__torch_function__(function, types, args, kwargs or {})


class PinnedTensor(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """Host memory that a late copy reads where it lies."""

    memory: Any

    def is_pinned(self, device: Any = None) -> bool:
        del device
        return True

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A result that is computed of it is pageable; only views are pinned."""
        found = super().__torch_function__(function, types, args, kwargs or {})
        is_view = isinstance(found, PinnedTensor) and plain(found).untyped_storage().data_ptr() in _kept
        return plain(found) if isinstance(found, PinnedTensor) and not is_view else found


# Calls that look at a tensor without reading its memory.
_VIEWS = {
    "__get__",
    "view",
    "reshape",
    "as_subclass",
    "expand",
    "squeeze",
    "unsqueeze",
    "stride",
    "size",
    "dim",
    "numel",
    "data_ptr",
    "element_size",
    "flatten",
    "is_contiguous",
    "transpose",
    "permute",
    "storage_offset",
    "narrow",
    "select",
    "detach",
    "untyped_storage",
    "__repr__",
    "__len__",
    "__hash__",
}


def _later(function: Any, args: Any, kwargs: Any) -> Any:
    from integration.upstream.later import later  # noqa: PLC0415  it stands on this module

    return later(function, args, kwargs)


def plain(tensor: Any) -> Any:
    """The same memory without our class around it."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def on_device(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return _allocated(late().device.empty, shape, dtype, DeviceTensor)


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return _allocated(late().device.pinned, shape, dtype, PinnedTensor)


def _allocated(make: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype, kind: type) -> Any:
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype).as_subclass(kind)
    size = count * torch.empty((), dtype=dtype).element_size()
    name = _NATIVE_DTYPES.get(dtype)
    memory = make(shape, name) if name else make((size,), "uint8")
    address = memory.address if isinstance(memory, native.DeviceArray) else memory.array.ctypes.data
    raw = (ctypes.c_uint8 * size).from_address(address)
    tensor = torch.frombuffer(raw, dtype=dtype).view(shape).zero_().as_subclass(kind)
    tensor.memory = memory
    _keep(tensor.untyped_storage(), memory)
    return tensor


# Memory by the address of its storage: a view must keep it, and views share the storage.
_kept: dict[int, Any] = {}


def _keep(storage: Any, memory: Any) -> None:
    _kept[storage.data_ptr()] = memory


def enqueue_copy(dst: Any, source: Any, non_blocking: bool) -> None:
    """CUDA's rules: a pinned source is read when the stream gets there, a pageable one before the call returns."""
    src = source if isinstance(source, torch.Tensor) else torch.as_tensor(source)
    if tuple(src.shape) != tuple(dst.shape):
        src = src.expand(dst.shape)
    is_late = isinstance(src, DeviceTensor | PinnedTensor) and src.dtype == dst.dtype
    if not is_late:
        fresh = pinned(tuple(dst.shape), dst.dtype)
        plain(fresh).copy_(plain(src))
        src = fresh
    place = current_place()
    for to, of, size in _spans(plain(dst), plain(src)):
        place.device.copy(to, of, size, place.stream)
    if not non_blocking and isinstance(source, PinnedTensor):
        late().settle(place.stream)


def _spans(dst: Any, src: Any) -> Iterator[tuple[int, int, int]]:
    if dst.numel() == 0:
        return
    if dst.is_contiguous() and src.is_contiguous():
        yield dst.data_ptr(), src.data_ptr(), dst.numel() * dst.element_size()
        return
    if dst.dim() == 0:
        yield dst.data_ptr(), src.data_ptr(), dst.element_size()
        return
    for i in range(dst.shape[0]):
        yield from _spans(dst[i], src[i])
