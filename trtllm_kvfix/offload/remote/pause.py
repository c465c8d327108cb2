"""Pause before the next request to a store that does not answer. It doubles each time."""

FAILURES_MIN = 3  # in a row, before it is left alone
PAUSE_S_MAX = 60.0


class Pause:
    """One thread uses it."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0

    def is_over(self, now: float) -> bool:
        return now >= self._until

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= FAILURES_MIN:
            self._until = now + min(2.0 ** (self._failures - FAILURES_MIN), PAUSE_S_MAX)
