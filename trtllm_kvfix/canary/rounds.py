"""Rounds over slots, each in a new random order, so that nothing in step with one escapes for ever.

The order is drawn while a round goes, and slots come and go at any time: no step pays for all of them.
"""

import random
from collections.abc import Callable

STALE_PER_SLOT_MAX = 16  # slots that a call throws out for each that it wants: many at once take several steps


class Rounds:
    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._slots: list[int] = []  # those in front of `_next` have been drawn in this round
        self._next = 0
        self._known: set[int] = set()

    def add(self, slot: int) -> None:
        if slot not in self._known:
            self._known.add(slot)
            self._slots.append(slot)

    def draw(self, count: int, is_wanted: Callable[[int], bool]) -> list[int]:
        """The next ones of this round, fewer at its end. A slot that is not wanted any more has to be added again."""
        slots, found = self._slots, list[int]()
        if self._next >= len(slots):
            self._next = 0
        for _ in range(STALE_PER_SLOT_MAX * count):
            if len(found) == count or self._next >= len(slots):
                break
            place = self._random.randrange(self._next, len(slots))
            slot = slots[place]
            if is_wanted(slot):
                slots[place], slots[self._next] = slots[self._next], slot
                self._next += 1
                found.append(slot)
            else:
                slots[place] = slots[-1]
                slots.pop()
                self._known.discard(slot)
        return found
