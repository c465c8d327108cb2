"""One thread for numpy's matrix products: those of a small model are over before a second thread has begun.

OpenBLAS, which numpy's wheels bring, keeps its threads spinning, beside the threads of the simulated device. On two
cores a step then takes fifty times as long. It reads its environment when it is loaded; later a call sets the number of
threads.
"""

import ctypes
import re
from functools import cache
from pathlib import Path

MAPS = Path("/proc/self/maps")  # of Linux; elsewhere threads are left as they are
SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


@cache
def use_one_thread() -> None:
    """Use one thread in this process from now on."""
    if not MAPS.exists():
        return
    for path in set(re.findall(r"\S*openblas\S*\.so\S*", MAPS.read_text(encoding="utf-8"))):
        library = ctypes.CDLL(path)
        for name in SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(1)
                break
