"""A copy of the installed CUDA driver that is asked to read its source during the call (cuMemcpyBatchAsync).

Nothing here knows this package: the script that `reproduce` prints contains it. The extension has no such copy, because
nothing of ours should ask for it.
"""

import ctypes
from typing import Any

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
