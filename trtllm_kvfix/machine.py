"""This machine's means for pinned memory and copies: GPU, driver, limits."""

import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtllm_kvfix.native import Device

CAP_IPC_LOCK = 14  # linux/capability.h
DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def describe() -> dict[str, Any]:
    gpu = first_gpu()
    return {
        "driver": driver_version(),
        "gpu": None if gpu is None else gpu.name,
        "gpu_runs_kernels": None if gpu is None else gpu.has_kernels,
        "memory_lock_bytes": memory_lock_bytes(),
    }


def driver_version() -> str | None:
    try:
        text = DRIVER_VERSION.read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?(\d+\.\d+[.\d]*)", text)
    return found[1] if found else None


def first_gpu() -> "Device | None":
    """The first GPU as the driver API describes it; None without a driver, a GPU or the extension."""
    try:
        from trtllm_kvfix import native  # noqa: PLC0415  a missing extension is reported elsewhere

        return native.open_device("cuda")
    except (ImportError, ValueError, RuntimeError):
        return None


def memory_lock_bytes() -> int | None:
    """Memory that this process may register for a device under the kernel's limit. None: any amount."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def may_lock_any_memory(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has CAP_IPC_LOCK, with which the kernel applies no limit."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> CAP_IPC_LOCK & 1)
