"""Fuse of a fix, for faults in its own code: it never ends the server, logs once, and stays off after repeated faults.

    def replacement(self, *args, **kwargs):
        try:
            prepared = ours(self, *args)
        except Exception as error:
            fuse.fault(error)
            return safe(original, self, *args, **kwargs)
        fuse.in_a_row = 0
        return original(self, *args, **kwargs)  # outside any `try` of ours: what upstream raises passes through

Each fix chooses what is safe: a synchronous copy where staging failed, upstream's order where advice failed. A fallback
never repeats a call of upstream's that has run. Where ranks must decide alike, a fix asks the others first and stands
down with them (overlay/vote.py), so it sets `may_blow` to False and calls `blow` itself.
"""

from collections.abc import Callable
from contextlib import suppress

from trtllm_kvfix.forks import ForkedLock
from trtllm_kvfix.log import described, log
from trtllm_kvfix.metrics import counters, flight

IN_A_ROW_MAX = 3


class Fuse:
    """Counts the faults of one fix. Any thread may use it. Every success sets `in_a_row` to 0; a lost update costs one
    fault more or less."""

    def __init__(self, fix_id: str, *, may_blow: bool = True) -> None:
        self.fix_id = fix_id
        self.blown = False
        self.in_a_row = 0
        self.faults = 0
        self.first_error = ""
        self.may_blow = may_blow
        self._lock = ForkedLock()

    def fault(self, error: Exception) -> None:
        """Call it in an `except` of our own code. It raises nothing, whatever happens."""
        what = described(error)  # without the lock: its text may be made by code that comes here, too
        with self._lock():
            self.faults += 1
            self.in_a_row += 1
            is_first = self.faults == 1
            if is_first:
                self.first_error = what
        with suppress(Exception):
            counters.fix_faults.add(1, self.fix_id)
            flight.note(flight.FAULT, self.in_a_row, text=self.fix_id)
        if is_first:
            log.error(
                "fix %s failed in its own code; it took its safe fallback, and the server goes on. This is logged once",
                self.fix_id,
                error=error,
            )
            _changed()
        if self.may_blow and self.in_a_row >= IN_A_ROW_MAX:
            self.blow(f"{self.in_a_row} faults in a row, the last one {what}")

    def observe(self, would_act: Callable[[], bool]) -> None:
        """For a fix that only observes: count what it would have done."""
        if self.blown:
            return
        try:
            if would_act():
                counters.observed.add(1, self.fix_id)
        except Exception as error:
            self.fault(error)
        else:
            self.in_a_row = 0

    def blow(self, why: str) -> None:
        """From now on this fix takes its fallback in this process."""
        with self._lock():
            if self.blown:
                return
            self.blown = True
        flight.note(flight.STOOD_DOWN, self.faults, text=self.fix_id)
        log.error("fix %s stands down in this process: %s", self.fix_id, why)
        _changed()


_fuses: dict[str, Fuse] = {}
_watchers: list[Callable[[], None]] = []
_lock = ForkedLock()


def of(fix_id: str) -> Fuse:
    """The fuse of this fix in this process."""
    with _lock():
        if fix_id not in _fuses:
            _fuses[fix_id] = Fuse(fix_id)
        return _fuses[fix_id]


def reset(fix_id: str) -> None:
    """The fix is taken off: when it is applied again, it starts without these faults."""
    with _lock():
        _fuses.pop(fix_id, None)


def watch(call: Callable[[], None]) -> None:
    """Call when a fix has its first fault, and when it stands down."""
    _watchers.append(call)


def _changed() -> None:
    for call in _watchers:
        try:
            call()
        except Exception as error:
            log.error("a watcher of faults failed", error=error)
