"""One shipment of block offsets in so many is read back from the device and compared with what was sent.

The way back is a copy on the same stream, behind the shipment, into memory of ours, and an event behind it. No thread
waits for that event: the next shipment, or a reading of the counters, checks whether it has passed. If that takes
longer than the next sample, samples are left out. A failure here ends the reading back and nothing else.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native
from trtllm_kvfix.log import described, log
from trtllm_kvfix.metrics import counters, counting
from trtllm_kvfix.staging import in_use
from trtllm_kvfix.staging.mark import MovableMark
from trtllm_kvfix.staging.place import current_place

Made = TypeVar("Made")
Table = npt.NDArray[np.int32]
PENDING_MAX = 4  # a step ships once for each model, the draft's included
OBSERVED_EVERY = 100  # of a fix on `observe`, where no rate is set
WORD_BYTES = 4
BAD_PAGE = -1  # attention does not read these, and kernels differ in what they write there


class Shipment(NamedTuple):
    """A shipment to the first rows of `dst`, on the stream; None means this thread's current one."""

    dst: Any
    meant: Table  # (pools, rows, 2, blocks); compared later, so nobody else may write it
    stream: int | None = None


class _Look(NamedTuple):
    behind: MovableMark
    memory: native.PinnedArray
    meant: Table


class ReadBack:
    """The read-back of one fix. Each engine of the process ships in a thread of its own; any thread may count."""

    def __init__(self, fix_id: str, every: int) -> None:
        self._fix_id = fix_id
        self._every = every
        self._shipments = itertools.count(1)  # a thread takes the next number in one step
        self._lock = threading.Lock()  # guards what follows
        self._pending: deque[_Look] = deque()
        self._idle: dict[tuple[int, ...], list[native.PinnedArray]] = {}
        self._said = False
        self._failed = False  # a comparison has: nobody looks at what is pending any more
        counting.refresh(self)

    def due(self) -> bool:
        """Count a shipment, and return whether to sample it. It raises nothing: the shipment has been made."""
        if self._every == 0 or next(self._shipments) % self._every:
            return False
        self._judge(blocking=False)
        return not self._failed and len(self._pending) < PENDING_MAX

    def guarded(self, made: Callable[[], Made]) -> Made | None:
        """The memory for a sample of the next shipment; None if it is not sampled, or there is no memory for it."""
        try:
            return made() if self.due() else None
        except Exception as error:
            self._give_up(error)
            return None

    def look(self, made: Callable[[], Shipment | None]) -> None:
        """Sample what has just been shipped; None where that is not known."""
        try:
            shipment = made()
            if shipment is not None:
                self._enqueue(shipment)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._every = 0
        log.warning("block offsets are no longer read back: %s", described(error))

    def count(self) -> None:
        self._judge(blocking=True)

    def _enqueue(self, shipment: Shipment) -> None:
        dst, meant, stream = shipment
        device, current = current_place()
        stream = current if stream is None else stream
        target = native.DeviceTable(dst, device)
        pools, rows = meant.shape[:2]
        memory = self._memory(device, (pools, target.rows, 2, target.blocks))
        row_bytes = 2 * target.blocks * WORD_BYTES
        for pool in range(pools):
            to = memory.address + pool * target.rows * row_bytes
            device.copy(to, target.address + pool * target.pool_stride * WORD_BYTES, rows * row_bytes, stream)
        behind = MovableMark(device, stream)
        behind.record()
        in_use.keep(behind, (memory, dst))  # the fix may be taken off meanwhile
        with self._lock:
            self._pending.append(_Look(behind, memory, meant))

    def _memory(self, device: native.Device, shape: tuple[int, ...]) -> native.PinnedArray:
        with self._lock:
            idle = self._idle.setdefault(shape, [])
            return idle.pop() if idle else device.pinned(shape, "int32")

    def _judge(self, *, blocking: bool) -> None:
        """Compare the samples that have arrived; it raises nothing. The loop's thread does not wait while another
        counts."""
        if not self._lock.acquire(blocking=blocking):
            return
        try:
            while not self._failed and self._pending and self._pending[0].behind.done():
                self._compare(self._pending[0])
                look = self._pending.popleft()
                self._idle[tuple(look.memory.shape)].append(look.memory)
        except Exception as error:
            # What is pending stays: a copy may still write there, and giving pinned memory back waits for the stream.
            self._failed = True
            self._give_up(error)
        finally:
            self._lock.release()

    def _compare(self, look: _Look) -> None:
        _, rows, _, blocks = look.meant.shape
        arrived = look.memory.array[:, :rows, :, :blocks]
        wrong = (arrived != look.meant) & (look.meant != BAD_PAGE)
        counters.table_read_backs.add(1, self._fix_id)
        if not wrong.any():
            return
        counters.table_mismatches.add(1, self._fix_id)
        if not self._said:
            self._said = True
            place = tuple(int(index) for index in np.argwhere(wrong)[0])
            log.error(
                "%s: a shipment of block offsets arrived wrong: %d of %d words differ, the first at (pool, row, "
                "plane, block) %s is %d instead of %d. This is logged once; table_mismatches_total counts all",
                *(self._fix_id, int(wrong.sum()), wrong.size, place, arrived[place], look.meant[place]),
            )
