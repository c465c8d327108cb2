"""Report the kernels for the GPU that this build lacks. The fixes hold without them, and some are slower."""

from collections.abc import Iterator, Mapping
from typing import Any

# Figures: docs/benchmarks.md (What bounds it) and docs/offload.md (Speed), on an H200.
COSTS = (
    "the CPU copies tables of block offsets of 64 KiB or more; from 16 MiB on, that takes 1.6 to 2.9 times as long",
    "block offsets of V2 managers travel as two tables, where one is enough",
    "the offload connector stores blocks of 16 KiB at 34 GB/s instead of 49, and loads them at 27 instead of 42",
    "`verify` shows the order of operations on the simulated device, and nothing about this GPU",
)
CURE = "build it where nvcc 12 or newer is in PATH or in CUDA_HOME: pip install . -C cmake.define.KVFIX_KERNELS=ON"


def why_missing(extension: Mapping[str, str], machine: Mapping[str, Any]) -> str | None:
    """None: there are kernels, and the GPU that is here, if any, runs them."""
    if extension.get("kernels") == "none":
        return "this build has no CUDA kernels, as nvcc was not found"
    if machine["gpu"] is not None and not machine["gpu_runs_kernels"]:
        return f"this build has CUDA kernels for {extension.get('kernels')}, none of which runs on {machine['gpu']}"
    return None


def lines(why: str) -> Iterator[str]:
    yield f"{why}. What that costs:"
    yield from (f"  {cost}" for cost in COSTS)
    yield f"  {CURE}"
