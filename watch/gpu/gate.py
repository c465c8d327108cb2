"""A gate on a stream: the device waits at it until the host opens it, or a while has passed.

The while is measured by a process of its own. A thread that hostrace holds may hold the interpreter's lock too, and
only somebody outside can then let the device go on.
"""

import ctypes as c
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

# Where somebody is held until then: time enough for a touch on a busy machine. Else the program opens it, and this only
# ends a hang.
HELD_WITHIN_S, WITHIN_S = 0.1, 60.0
WAIT_GEQ = 0
OPENER = """
import mmap, os, select, struct, sys, time
word = memoryview(mmap.mmap(int(sys.argv[1]), 4096)).cast("I")
number, until = 0, None
while True:
    wait_s = None if until is None else max(until - time.monotonic(), 0)
    if not select.select([0], [], [], wait_s)[0]:
        word[0], until = max(word[0], number), None
        continue
    record = os.read(0, 16)
    if not record:
        break
    number, within_s = struct.unpack("<Qd", record)
    until = time.monotonic() + within_s
"""


class Gate:
    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call
        self.within_s = HELD_WITHIN_S if os.environ.get("HOSTRACE_HOLD_MS") else WITHIN_S
        self.number = 0
        file = os.memfd_create("gate")
        os.ftruncate(file, 4096)
        self.opener = subprocess.Popen(
            [sys.executable, "-S", "-c", OPENER, str(file)], stdin=subprocess.PIPE, pass_fds=[file], bufsize=0
        )
        self.room = mmap.mmap(file, 4096)
        self.word = c.c_uint32.from_buffer(self.room)
        self.device = c.c_ulonglong()
        call("cuMemHostRegister_v2", c.byref(self.word), c.c_size_t(4096), 3)
        call("cuMemHostGetDevicePointer_v2", c.byref(self.device), c.byref(self.word), 0)

    def close(self, stream: Any) -> None:
        """Everything that is enqueued from now on waits."""
        self.number += 1
        self.call("cuStreamWaitValue32_v2", stream, self.device, c.c_uint32(self.number), WAIT_GEQ)
        self.open_within(self.within_s)

    def open_within(self, seconds: float) -> None:
        assert self.opener.stdin is not None
        self.opener.stdin.write(struct.pack("<Qd", self.number, seconds))

    def open(self) -> None:
        self.word.value = self.number

    def end(self) -> None:
        assert self.opener.stdin is not None
        self.opener.stdin.close()
        self.opener.wait()
