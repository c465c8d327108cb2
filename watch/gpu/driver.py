"""The part of the CUDA driver API that the planted programs call, through ctypes: they start in a moment."""

import ctypes as c
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

from watch.gpu.gate import Gate

Address: TypeAlias = c.c_ulonglong
Handle: TypeAlias = c.c_void_p
Size: TypeAlias = c.c_size_t
HOST, DEVICE = 1, 2
ORDER_STREAM, ORDER_DURING_CALL, ORDER_ANY = 1, 2, 3
PLACE_DEVICE, PLACE_HOST, PLACE_HOST_NUMA = 1, 2, 3
GRANULE = 2 << 20  # of memory that is mapped

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry copy_byte(.param .u64 to, .param .u64 from) {
  .reg .b64 %rd<5>; .reg .b16 %r;
  ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from];
  cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2;
  ld.global.u8 %r, [%rd4]; st.global.u8 [%rd3], %r;
  ret;
}
.visible .entry copy_byte_of_struct(.param .align 8 .b8 given[32]) {
  .reg .b64 %rd<5>; .reg .b16 %r;
  ld.param.u64 %rd1, [given+8]; ld.param.u64 %rd2, [given+16];
  cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2;
  ld.global.u8 %r, [%rd4]; st.global.u8 [%rd3], %r;
  ret;
}
\0"""


class Copy2d(c.Structure):
    _fields_ = [
        *((f"src_{name}", kind) for name, kind in (("x", Size), ("y", Size), ("type", c.c_int))),
        *((f"src_{name}", kind) for name, kind in (("host", Handle), ("device", Address), ("array", Handle))),
        ("src_pitch", Size),
        *((f"dst_{name}", kind) for name, kind in (("x", Size), ("y", Size), ("type", c.c_int))),
        *((f"dst_{name}", kind) for name, kind in (("host", Handle), ("device", Address), ("array", Handle))),
        ("dst_pitch", Size),
        ("width", Size),
        ("height", Size),
    ]


def _side3d(name: str) -> list[tuple[str, Any]]:
    fields = [("x", Size), ("y", Size), ("z", Size), ("lod", Size), ("type", c.c_int), ("host", Handle)]
    fields += [("device", Address), ("array", Handle), ("reserved", Handle), ("pitch", Size), ("height", Size)]
    return [(f"{name}_{field}", kind) for field, kind in fields]


class Copy3d(c.Structure):
    _fields_ = [*_side3d("src"), *_side3d("dst"), ("width", Size), ("height", Size), ("depth", Size)]


class Attributes(c.Structure):
    _fields_ = [("order", c.c_int), ("hints", c.c_int * 4), ("flags", c.c_uint)]


class Place(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class Allocation(c.Structure):
    _fields_ = [("type", c.c_int), ("handle_types", c.c_int), ("place", Place), ("rest", c.c_ulonglong * 10)]


class Access(c.Structure):
    _fields_ = [("place", Place), ("flags", c.c_int)]


class Memset(c.Structure):
    _fields_ = [("dst", Address), ("pitch", Size), ("value", c.c_uint), ("element", c.c_uint), ("width", Size)]
    _fields_ += [("height", Size)]


class LaunchConfig(c.Structure):
    _fields_ = [("grid", c.c_uint * 3), ("block", c.c_uint * 3), ("shared", c.c_uint), ("stream", Handle)]
    _fields_ += [("attributes", Handle), ("count", c.c_uint)]


class Struct(c.Structure):
    _fields_ = [("before", Address), ("to", Address), ("source", Address), ("after", Address)]


class Driver:
    """One device, its primary context, a stream, and device memory to copy to and from."""

    def __init__(self, bytes_: int = 1 << 20) -> None:
        self.library = c.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = c.c_int(), Handle()
        self("cuDeviceGet", c.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self("cuCtxSetCurrent", context)
        self.context = context
        self.bytes = bytes_
        self.stream = self.new_stream()
        self.device = self.allocate(bytes_)

    @cached_property
    def gate(self) -> Gate:
        """Made when it is needed: it pins memory, and not every program does."""
        return Gate(self)

    def end(self) -> None:
        if "gate" in vars(self):
            self.gate.end()

    def __call__(self, name: str, *arguments: Any) -> None:
        result = getattr(self.library, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: CUDA error {result}")

    def new_stream(self) -> Handle:
        stream = Handle()
        self("cuStreamCreate", c.byref(stream), 1)
        return stream

    def allocate(self, bytes_: int) -> Address:
        address = Address()
        self("cuMemAlloc_v2", c.byref(address), Size(bytes_))
        return address

    def pinned(self, bytes_: int) -> "Any":
        """An array of bytes in memory that the driver pinned."""
        host = Handle()
        self("cuMemHostAlloc", c.byref(host), Size(bytes_), 3)
        return (c.c_ubyte * bytes_).from_address(host.value or 0)

    def mapped(self, bytes_: int) -> "Any":
        """The same in host memory that is made first, and then mapped to an address."""
        room = Size(-(-bytes_ // GRANULE) * GRANULE)
        handle, address = c.c_ulonglong(), Address()
        made = Allocation(1, 0, Place(PLACE_HOST_NUMA, 0))
        self("cuMemCreate", c.byref(handle), room, c.byref(made), c.c_ulonglong(0))
        self("cuMemAddressReserve", c.byref(address), room, Size(0), Address(0), c.c_ulonglong(0))
        self("cuMemMap", address, room, Size(0), handle, c.c_ulonglong(0))
        who = (Access * 2)(Access(Place(PLACE_DEVICE, 0), 3), Access(Place(PLACE_HOST, 0), 3))
        self("cuMemSetAccess", address, room, who, Size(2))
        return (c.c_ubyte * bytes_).from_address(address.value)

    def pool(self, place: int = PLACE_HOST_NUMA) -> Handle:
        """Of memory that the device may use."""
        pool = Handle()
        made = Allocation(1, 0, Place(place, 0))
        self("cuMemPoolCreate", c.byref(pool), c.byref(made))
        self("cuMemPoolSetAccess", pool, c.byref(Access(Place(PLACE_DEVICE, 0), 3)), Size(1))
        return pool

    def pooled(self, bytes_: int, pool: Handle | None = None) -> "Any":
        """The same in memory of a pool, which may be used at once."""
        address = Address()
        self("cuMemAllocFromPoolAsync", c.byref(address), Size(bytes_), pool or self.pool(), self.stream)
        self.synchronize()
        return (c.c_ubyte * bytes_).from_address(address.value)

    def batch(self, copies: Sequence[tuple[int, int, int]], order: int) -> None:
        """Copies of (to, from, bytes), by one call."""
        to, origins, sizes = zip(*copies, strict=True)
        count = len(copies)
        given = ((Address * count)(*to), (Address * count)(*origins), (Size * count)(*sizes), Size(count))
        orders = (c.byref(Attributes(order)), (Size * 1)(0), Size(1))
        self("cuMemcpyBatchAsync_v2", *given, *orders, self.stream)

    def synchronize(self, stream: Handle | None = None) -> None:
        self("cuStreamSynchronize", stream or self.stream)

    def read_device(self, offset: int = 0) -> int:
        value = c.c_ubyte()
        self("cuMemcpyDtoH_v2", c.byref(value), Address(self.device.value + offset), Size(1))
        return value.value

    def fill_device(self, value: int) -> None:
        self("cuMemsetD8_v2", self.device, c.c_ubyte(value), Size(self.bytes))
        self("cuCtxSynchronize")

    def function(self, name: str) -> Handle:
        module, function = Handle(), Handle()
        self("cuModuleLoadData", c.byref(module), PTX)
        self("cuModuleGetFunction", c.byref(function), module, name.encode())
        return function
