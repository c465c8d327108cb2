"""The part of the host pool through which blocks go to the store that the host tier does not take.

The store is larger than the host tier, so what is not worth a place here may be worth one there. The index of the host
tier knows nothing of these slots: a block has one from the plan of its store until its put is over, and nobody finds it
meanwhile.
"""

STAGING_SHARE = 8  # of the host pool, one slot in so many


def staging_slots(slots: int) -> int:
    """Counts the staging slots of a pool of so many. The host tier has the rest, at least one."""
    return min(max(slots // STAGING_SHARE, 1), slots - 1)


class Staging:
    """The last slots of a pool. The executor's thread alone uses it."""

    def __init__(self, slots: int) -> None:
        self.first = slots - staging_slots(slots)
        self._free = list(range(self.first, slots))

    def __contains__(self, slot: int) -> bool:
        return slot >= self.first

    def take(self, count: int) -> tuple[int, ...]:
        """Or as many as there are."""
        taken, self._free = self._free[:count], self._free[count:]
        return tuple(taken)

    def give_back(self, slots: tuple[int, ...]) -> None:
        self._free.extend(slots)
