"""Measures what it takes to protect pages and to open them again, by mprotect and by what else Linux has:
`python -m watch.gpu.protect PROTECT RESULTS.csv`, where PROTECT is protect.cc, compiled.

It needs no GPU. Where there is one, a row says whether userfaultfd takes memory that the driver allocates for the host.
"""

import argparse
import ctypes as c
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from watch.gpu.driver import Driver
from watch.gpu.table import table

FIELDS = ("commit", "kernel", "cores", "means", "pages", "other_threads", "us")
SYSTEM_CALL, USER_MODE_ONLY = {"x86_64": 323, "aarch64": 282}, 1
API, REGISTER = 0xC018AA3F, 0xC020AA00  # numbers of ioctl
VERSION, WRITE_PROTECT, BYTES = 0xAA, 2, 1 << 16


def taken_by_userfaultfd(begin: int, bytes_: int) -> bool:
    library = c.CDLL(None, use_errno=True)
    file = library.syscall(SYSTEM_CALL[platform.machine()], os.O_CLOEXEC | USER_MODE_ONLY)
    api = (c.c_uint64 * 3)(VERSION, 1, 0)
    all_of_it = (c.c_uint64 * 4)(begin, bytes_, WRITE_PROTECT, 0)
    works = file >= 0 and not library.ioctl(file, c.c_ulong(API), api)
    works = works and not library.ioctl(file, c.c_ulong(REGISTER), all_of_it)
    if file >= 0:
        os.close(file)
    return bool(works)


def of_the_driver() -> str | None:
    """Whether its memory is taken; nothing where there is no driver."""
    try:
        cuda = Driver()
    except (OSError, RuntimeError):
        return None
    host = cuda.pinned(BYTES)
    taken = taken_by_userfaultfd(c.addressof(host), BYTES)
    cuda.gate.end()
    return "taken" if taken else "refused"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protect", help="protect.cc as a program")
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    found = re.match(r"\d+\.\d+", platform.release())
    where = (os.environ.get("KVFIX_COMMIT", ""), found[0] if found else "", os.cpu_count())
    said = subprocess.run([given.protect], capture_output=True, text=True, check=True).stdout
    rows = [line.split("|") for line in said.splitlines()]
    answer = of_the_driver()
    if answer is not None:
        rows.append(["userfaultfd, memory of the driver", str(BYTES >> 12), "0", answer])
    with table(given.results, FIELDS) as add:
        for means, pages, others, us in rows:
            value = "not there" if us.startswith("-") else us
            add((*where, means, pages, others, value))
            print(f"{means}, {pages} pages, {others} other threads: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
