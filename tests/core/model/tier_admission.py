"""Section 11: which blocks may push others out of a full tier, with plain sets."""

from collections.abc import Hashable
from dataclasses import dataclass, field

SAMPLED_POSITIONS = 8
ROUND_MIN = 64
KEPT = 0.75


@dataclass
class Recent:
    """At least `keys` of those noted last."""

    keys: int
    young: set[Hashable] = field(default_factory=set)
    old: set[Hashable] = field(default_factory=set)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.young or key in self.old

    def note(self, key: Hashable) -> None:
        if key not in self.young and len(self.young) == max(self.keys, 1):
            self.young, self.old = set(), self.young
        self.young.add(key)


class ModelAdmission:
    def __init__(self, slots: int) -> None:
        self.history = Recent(slots * 4 * 2 // 3)
        self.shadows = {"all": Recent(slots // 8 * 2 // 3), "known": Recent(slots // 8 * 2 // 3)}
        self.found = {"all": 0.0, "known": 0.0}
        self.round = max(slots // 8, ROUND_MIN)
        self.sampled = 0
        self.takes_new = True

    def asked(self, key: Hashable, position: int, elsewhere: bool, reused: bool) -> bool:
        before = reused or key in self.history
        self.history.note(key)
        if position % SAMPLED_POSITIONS == 0:
            self._sample(key, before, elsewhere)
        return before

    def _sample(self, key: Hashable, before: bool, elsewhere: bool) -> None:
        here = {name for name, shadow in self.shadows.items() if key in shadow}
        for name in here if not elsewhere else ():
            self.found[name] += 1
        self.shadows["all"].note(key)
        if before or "known" in here:
            self.shadows["known"].note(key)
        self.sampled += 1
        if self.sampled == self.round:
            self.takes_new = self.found["known"] <= self.found["all"]
            self.found = {name: KEPT * count for name, count in self.found.items()}
            self.sampled = 0
