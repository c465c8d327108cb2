"""A flight recorder: the last 256 decisions of this process, in memory that outlives it.

    flight.note(flight.BATCH_CUT, tokens_before, tokens_after, trimmed, deferred)

A note goes into a slot of a ring, natively, since some are made at every step of the engine. Once it has moved into
a file, the ring is that file of 20 KB, which the kernel writes out even if the process is killed;
`trtllm-kvfix status --dump` reads it. Any thread may note. A forked child has a ring of its own.
"""

import mmap
import os
import struct
import threading
from typing import Any, NamedTuple

from trtllm_kvfix.native import FlightRing

SLOTS = 256
_SLOT = struct.Struct("<QqQH4q24s")  # number (0: empty), time in ns, thread, kind, four values, a text
_VALUES_MAX = 4
SUFFIX = ".flight"
MAGIC = b"KVFIXFR1"


class Kind(NamedTuple):
    number: int
    name: str
    fields: tuple[str, ...]  # names of the values


FAULT = Kind(1, "fault", ("in_a_row",))  # text: the fix
STOOD_DOWN = Kind(2, "stood-down", ("faults",))  # text: the fix
STARTED = Kind(3, "engine started", ("rank", "world_size"))
LOOP_FAILED = Kind(4, "loop failed", ())  # text: the exception
BATCH_CUT = Kind(5, "batch cut", ("tokens_before", "tokens_after", "trimmed", "deferred"))
REORDERED = Kind(6, "admission reordered", ("requests", "tokens_expected"))
SHIPPED = Kind(FlightRing.SHIPPED, "shipped", ("rows", "pools"))
FENCE_WAITED = Kind(8, "fence waited", ("wait_us",))
HELD_BACK = Kind(9, "store held back", ("request_id", "tokens_left"))
STORED = Kind(10, "blocks stored", ("blocks",))
LOADED = Kind(11, "blocks loaded", ("blocks",))
TRANSFER_FAILED = Kind(12, "transfer failed", ("blocks",))  # text: the direction
CANARY_SPOKE = Kind(13, "canary spoke", ("slot", "filler", "reader", "step"))  # text: kind and occasion
CANARY_STOOD_DOWN = Kind(14, "canary stood down", ("step",))  # text: the fault

KINDS = {value.number: value for value in list(globals().values()) if isinstance(value, Kind)}


class Recorder:
    def __init__(self) -> None:
        self._memory: bytearray | mmap.mmap = _empty()
        self._ring = FlightRing(_slots_of(self._memory))
        self._ring.serve_process()
        self._lock = threading.Lock()  # around the change of memory

    def note(self, kind: Kind, *values: int, text: str = "") -> None:
        """Record at most four values. It never raises: recording must not disturb the server."""
        try:
            self._ring.note(kind.number, text.encode(errors="replace") if text else b"", *values[:_VALUES_MAX])
        except TypeError:  # a value that is no integer of 64 bits
            return

    def mapped(self, descriptor: int) -> mmap.mmap:
        """A file in memory that can take the ring, with its room on the disk: a write that finds the disk full is a bus
        error."""
        size = len(self._memory)
        os.posix_fallocate(descriptor, 0, size)
        memory = mmap.mmap(descriptor, size)
        memory[: len(MAGIC)] = MAGIC
        return memory

    def move_to(self, memory: mmap.mmap) -> None:
        """Continue in there; the notes so far are kept. The file of an earlier call may lose its name and must stay as
        long as it is: threads that note would be killed if it became shorter."""
        with self._lock:
            self._ring.move_to(_slots_of(memory))
            self._memory = memory

    def entries(self) -> list[dict[str, Any]]:
        return read(bytes(self._memory))


def read(ring: bytes) -> list[dict[str, Any]]:
    """The notes of a ring, the oldest first. Raises ValueError if the bytes are not a ring."""
    if len(ring) != len(_empty()) or not ring.startswith(MAGIC):
        raise ValueError(f"{len(ring)} bytes that begin with {ring[:8]!r} are no flight record of this version")
    found = []
    for slot in range(SLOTS):
        number, time_ns, thread, kind_number, *values, text = _SLOT.unpack_from(ring, len(MAGIC) + slot * _SLOT.size)
        if number == 0:
            continue
        kind = KINDS.get(kind_number, Kind(kind_number, f"kind {kind_number}", ("a", "b", "c", "d")))
        entry = {"number": number, "time_ns": time_ns, "thread": thread, "kind": kind.name}
        if text.rstrip(b"\0"):
            entry["text"] = text.rstrip(b"\0").decode(errors="replace")
        found.append(entry | dict(zip(kind.fields, values, strict=False)))
    return sorted(found, key=lambda entry: entry["number"])


def _empty() -> bytearray:
    return bytearray(MAGIC) + bytearray(SLOTS * _SLOT.size)


def _slots_of(memory: bytearray | mmap.mmap) -> Any:
    return memoryview(memory)[len(MAGIC) :]


_recorder = Recorder()
note = _recorder.note


def recorder() -> Recorder:
    """The recorder of this process."""
    return _recorder


def _forget_the_parents() -> None:
    Recorder.__init__(_recorder)


os.register_at_fork(after_in_child=_forget_the_parents)
