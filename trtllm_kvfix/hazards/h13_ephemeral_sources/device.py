"""H13 on a GPU: a pageable source is rewritten when the copy has returned that should have read it during the call.

Whether it shows depends on the driver, so the driver is asked first: by one copy of each size, behind a gate that opens
by itself, because a driver may also read during the call by waiting for the stream. The copy is cuMemcpyBatchAsync.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, NotShown, Side
from trtllm_kvfix.hazards.ground import held, let_go_in_time
from trtllm_kvfix.native import Device

# ---- the copy ----

# It knows nothing of this package: the script that `reproduce` prints contains it. The extension has no such copy,
# because nothing of ours should ask for it.
LIBRARY = "libcuda.so.1"
# Of CUDA 13, and of CUDA 12.8, which also says which copy has failed.
NEWER, OLDER = "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"
DURING_API_CALL = 2
PREFER_OVERLAP_WITH_COMPUTE = 1
ON_DEVICE, ON_HOST = 1, 2


class Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class Attributes(ctypes.Structure):
    _fields_ = [
        ("source_order", ctypes.c_int),
        ("source", Location),
        ("destination", Location),
        ("flags", ctypes.c_uint),
    ]


def open_driver() -> Any:
    """Raises OSError where there is no driver, or where it is older than this kind of copy."""
    driver = ctypes.CDLL(LIBRARY)
    if not hasattr(driver, NEWER) and not hasattr(driver, OLDER):
        raise OSError(f"{LIBRARY} has no {OLDER}, which came with the drivers of CUDA 12.8")
    return driver


def copy_read_during_call(driver: Any, dst: int, src: int, nbytes: int, stream: int, overlap: bool) -> None:
    """`overlap`: with the hint that upstream gave, which should change nothing about when the source is read."""
    context, queue = ctypes.c_void_p(), ctypes.c_void_p(stream)
    check(driver.cuStreamGetCtx(queue, ctypes.byref(context)), "cuStreamGetCtx")
    check(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
    try:
        attributes = Attributes(
            DURING_API_CALL,
            Location(ON_HOST, 0),
            Location(ON_DEVICE, 0),
            PREFER_OVERLAP_WITH_COMPUTE if overlap else 0,
        )
        to, origin, size = ctypes.c_uint64(dst), ctypes.c_uint64(src), ctypes.c_size_t(nbytes)
        one, first, failed = ctypes.c_size_t(1), ctypes.c_size_t(0), ctypes.c_size_t(0)
        copies = [ctypes.byref(to), ctypes.byref(origin), ctypes.byref(size), one]
        asked = [ctypes.byref(attributes), ctypes.byref(first), one]
        if hasattr(driver, NEWER):
            code = getattr(driver, NEWER)(*copies, *asked, queue)
        else:
            code = getattr(driver, OLDER)(*copies, *asked, ctypes.byref(failed), queue)
        check(code, OLDER)
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))


def check(code: int, function: str) -> None:
    if code:
        raise OSError(f"{function} failed with CUresult {code}")


# ---- the arms ----

NAME = "ephemeral-source"
KIB = 1024
SIZES = (4 * KIB, 64 * KIB, 96 * KIB, 128 * KIB, 256 * KIB, 1024 * KIB)


class Rewritten(Arm):
    """As upstream: the copy reads a vector of the host, which is rewritten when the call has returned."""

    def __init__(self, nbytes: int, overlap: bool, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.source = np.zeros(nbytes // 4, np.uint32)  # pageable
        self.arrived = device.empty(self.source.shape, "uint32")
        self._driver: Any = open_driver()
        self._overlap = overlap

    def prepare(self) -> None:
        self.meant, self.later = self.random.integers(1, 1 << 32, (2, *self.source.shape), np.uint32)
        self.source[:] = self.meant

    def call(self) -> None:
        address, nbytes = self.source.ctypes.data, self.source.nbytes
        copy_read_during_call(self._driver, self.arrived.address, address, nbytes, self.held, self._overlap)

    def disturb(self) -> None:
        self.source[:] = self.later

    def compare(self) -> Comparison:
        return Comparison(self.meant, self.device.download(self.arrived, self.held))


class Pinned(Rewritten):
    """What to do instead: the copy reads pinned memory of its own, which nobody writes before the copy is over."""

    def __init__(self, nbytes: int, overlap: bool, device: Device, seed: int) -> None:
        super().__init__(nbytes, overlap, device, seed)
        self._snapshot = device.pinned(self.source.shape, "uint32")

    def call(self) -> None:
        self._snapshot.array[:] = self.source
        pinned = self._snapshot
        self.device.copy_batch([self.arrived.address], [pinned.address], [pinned.nbytes], "stream", self.held)


def not_shown(build: Callable[[Device, int], Rewritten], device: Device) -> NotShown | None:
    if device.simulated:
        return NotShown("a simulated device keeps to the order that it is given; ask the driver of a GPU", False)
    try:
        with build(device, 0) as arm:
            return driver_is_right(arm)
    except OSError as error:
        return NotShown(str(error), False)


def driver_is_right(arm: Rewritten) -> NotShown | None:
    arm.prepare()
    arm.call()  # a driver may load things at the first call, and wait for all streams
    arm.settle()
    with let_go_in_time(held(arm.device, arm.held)) as let_go:
        arm.call()
        waited = let_go.is_set()
        arm.disturb()
    arm.settle()
    if waited:
        return NotShown("this driver waits for the stream during the call, so it has read the source", True)
    meant, found = arm.compare()
    if np.array_equal(meant, found):
        return NotShown("this driver reads the source during the call, as it was asked to", True)
    return None


def case(nbytes: int, overlap: bool) -> Case:
    copy = f"cuMemcpyBatchAsync of {nbytes // KIB} KiB of pageable memory, with source order DURING_API_CALL"
    rewritten = partial(Rewritten, nbytes, overlap)
    kind = ControlKind.UPSTREAM if overlap else ControlKind.REPAIR
    how = "As upstream, with a hint to overlap" if overlap else "After upstream's repair, without its hint"
    return Case(
        name=NAME,
        variant=f"{nbytes // KIB} KiB{', hint' if overlap else ''}",
        hazard="H13",
        title="A copy that is to read pageable memory during the call",
        call="the copy is enqueued, and returns",
        control_kind=kind,
        control=Side(
            rewritten,
            how=f"{how}: {copy}.",
            meanwhile="the host, told that the source is free, writes it again",
            effect="the copy runs and finds what was written later",
        ),
        fixed=Side(
            partial(Pinned, nbytes, overlap),
            how="The copy reads a pinned snapshot, which nobody writes until the copy is over.",
            meanwhile="the host writes the source again, and not the snapshot",
            effect="the copy runs and finds the snapshot",
        ),
        not_shown=partial(not_shown, rewritten),
    )


CASES = tuple(case(nbytes, overlap) for overlap, nbytes in product((True, False), SIZES))
