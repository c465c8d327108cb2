"""The enqueued work that reads one set of host tables, and the wait until it has run."""

from trtllm_kvfix.fixes.waits import finish, wait_for
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging import Mark, current_place


class Reads:
    """An executor's thread uses it alone; what its engine enqueued in another, while it was built, is awaited as well.

    Where our own code fails, the whole stream is awaited instead: slower, and as safe.
    """

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self._marks: dict[tuple[int, str], Mark] = {}  # by stream and device
        self._is_tracked = True  # False: something may be pending that has no mark

    def mark(self) -> None:
        """Everything on this thread's stream so far may read the tables."""
        if self._fuse.blown:
            return
        try:
            place = current_place()
            key = (place.stream, place.device.name)
            if key not in self._marks:
                self._marks[key] = Mark(place.device, place.stream)
            self._marks[key].record()
        except Exception as error:
            self._fuse.fault(error)
            self.lose_track()

    def lose_track(self) -> None:
        self._is_tracked = False

    def wait(self) -> None:
        """The tables may be written when this returns."""
        if self._is_tracked and not self._fuse.blown:
            try:
                wait_for(self._marks.values(), counters.replay_waits, counters.replay_wait_seconds)
            except Exception as error:
                self._fuse.fault(error)
            else:
                self._fuse.in_a_row = 0
                return
        finish()
        self._is_tracked = True


class ObservedReads(Reads):
    """Does not wait, and counts the writes that came while a graph had yet to read the tables."""

    def wait(self) -> None:
        if self._fuse.blown:
            return
        try:
            if not all(mark.done() for mark in self._marks.values()):
                counters.observed.add(1, self._fuse.fix_id)
        except Exception as error:
            self._fuse.fault(error)
        else:
            self._fuse.in_a_row = 0
