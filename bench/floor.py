"""The floor (floor.cc) from Python: compiled when it is first asked for, called once for a whole workload.

Needs a C++20 compiler (CXX) and xxHash's header: Debian's libxxhash-dev, or XXHASH_INCLUDE=<folder of xxhash.h>.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from workloads import Tokens, Workload

HERE = Path(__file__).parent
SOURCE = HERE / "floor.cc"
LIBRARY = HERE.parent / "build" / "bench" / "libfloor.so"
# gcc 12 sees uninitialized values in its own vector intrinsics, which xxHash uses.
FLAGS = ("-O3", "-march=native", "-std=c++20", "-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-shared", "-fPIC")


class Costs(NamedTuple):
    """Nanoseconds that one pass over a workload took, the time of its timed waves alone."""

    admit_ns: NDArray[np.int64]  # each wave
    step_ns: NDArray[np.int64]  # each generation step
    finish_ns: NDArray[np.int64]  # each wave
    tokens_reused: int


class Floor:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(_compiled()))
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._library.floor_run.argtypes = [pointer, size, size, size, size, pointer, pointer, pointer]
        self._library.floor_run.restype = size

    def run(self, workload: Workload, stream: Tokens, tokens_per_block: int) -> Costs:
        """`stream` is `workload.flattened()`, which takes longer than the run."""
        waves = sum(wave.timed for wave in workload.waves)
        admit, step, finish = (np.zeros(count, np.int64) for count in (waves, workload.steps, waves))
        reused = self._library.floor_run(
            stream.ctypes.data,
            stream.size,
            tokens_per_block,
            workload.tokens_primary // tokens_per_block,
            workload.tokens_host // tokens_per_block,
            admit.ctypes.data,
            step.ctypes.data,
            finish.ctypes.data,
        )
        return Costs(admit, step, finish, reused)


def _compiled() -> Path:
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > SOURCE.stat().st_mtime:
        return LIBRARY
    compiler = os.environ.get("CXX") or shutil.which("c++") or "c++"
    include = os.environ.get("XXHASH_INCLUDE")
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, *FLAGS, *([f"-I{include}"] if include else []), str(SOURCE), "-o", str(LIBRARY)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SystemExit(f"the floor needs a C++ compiler, {compiler} is not there; set CXX") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"the floor does not compile: {' '.join(command)}\n{error.stderr[:2000]}\n"
            "xxhash.h missing? On Debian and Ubuntu: apt install libxxhash-dev; else set XXHASH_INCLUDE"
        ) from error
    return LIBRARY
