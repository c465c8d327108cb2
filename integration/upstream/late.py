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
from torch.overrides import TorchFunctionMode

from trtllm_kvfix import native
from trtllm_kvfix.staging import current_place

_NATIVE_DTYPES = {torch.int32: "int32", torch.uint8: "uint8"}


class LateDevice:
    """Streams, gates and memory. One for each server."""

    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self._gates: dict[int, list[tuple[int, int]]] = {}  # by stream: (serial number, gate), oldest first
        self._serial = 0
        self._launched: list[tuple[int, Callable[[], None]]] = []  # kernels, by the gate behind which they lie
        self.settled: list[str] = []  # operations for which there is no late way; they waited for the stream

    def new_stream(self) -> int:
        handle = self.device.create_stream()
        self._gates[handle] = []
        return handle

    def hold(self) -> None:
        """What follows on every stream stays enqueued until somebody waits."""
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

    def release(self, up_to: int | None = None) -> None:
        due = [kernel for serial, kernel in self._launched if up_to is None or serial <= up_to]
        self._launched = [each for each in self._launched if up_to is not None and each[0] > up_to]
        for kernel in due:
            kernel()
        for stream, gates in self._gates.items():
            keep = []
            for serial, gate in gates:
                if up_to is None or serial <= up_to:
                    self.device.open_gate(gate)
                else:
                    keep.append((serial, gate))
            self._gates[stream] = keep

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
        return plain(self)[index].as_subclass(DeviceTensor)

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].copy_(torch.as_tensor(value, dtype=self.dtype).expand(plain(self)[index].shape))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if name not in _VIEWS:
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


# What looks at a tensor without reading its memory.
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
    if not non_blocking and isinstance(source, PinnedTensor | DeviceTensor):
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


class LateTorch(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Gives tensors on 'cuda' and pinned ones to the simulated device, whoever makes them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "pin_memory":
            return _moved(function, args, kwargs, pinned)
        wanted = kwargs.pop("pin_memory", False)
        place = kwargs.get("device")
        like = name.endswith("_like") and isinstance(args[0], DeviceTensor | PinnedTensor)
        on_cuda = (place is not None and "cuda" in str(place)) or (like and place is None and _is_device(args[0]))
        if wanted or on_cuda or like:
            kwargs["device"] = "cpu"
            plain_args = tuple(plain(each) if isinstance(each, DeviceTensor | PinnedTensor) else each for each in args)
            made = function(*plain_args, **kwargs)
            return _adopted(made, on_device if on_cuda else pinned) if wanted or on_cuda else made
        if name in ("cuda", "to") and args and isinstance(args[0], torch.Tensor):
            return self._sent(function, args, kwargs)
        return function(*args, **kwargs)

    def _sent(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        to_cuda = function.__name__ == "cuda" or any("cuda" in str(each) for each in (*args[1:], kwargs.get("device")))
        if not to_cuda:
            return function(*args, **kwargs)
        sent = on_device(tuple(args[0].shape), args[0].dtype)
        enqueue_copy(sent, args[0], bool(kwargs.get("non_blocking", False)))
        return sent


def _is_device(tensor: Any) -> bool:
    return isinstance(tensor, DeviceTensor)


def _adopted(made: Any, make: Callable[..., Any]) -> Any:
    tensor = make(tuple(made.shape), made.dtype)
    if made.numel():
        plain(tensor).copy_(plain(made))
    return tensor


def _moved(function: Any, args: Any, kwargs: dict[str, Any], make: Callable[..., Any]) -> Any:
    del function, kwargs
    return args[0] if isinstance(args[0], PinnedTensor) else _adopted(args[0], make)
