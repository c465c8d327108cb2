"""Numbers that native objects keep are fetched when somebody reads the counters."""

import weakref
from typing import Protocol

from trtllm_kvfix.metrics import counters


class Counted(Protocol):
    def count(self) -> None:
        """Add to the counters what happened since the last call."""


def refresh(owner: Counted) -> None:
    """Call before each reading, for as long as `owner` lives, so that the counters keep no device memory alive."""
    reference = weakref.ref(owner)

    def count() -> None:
        living = reference()
        if living is not None:
            living.count()

    counters.before_reading(count)
