"""Section 11: which blocks may push others out of a full tier, and which go, with plain lists and sets."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

SAMPLED_POSITIONS = 8
ROUND_MIN = 256
KINDS = range(6)
BUCKETS = range(38)
COLD, PARTLY, MOSTLY = range(3)
ONE = 256  # a block, in counts that fade
SHARE = 1 << 20
WORTH = 1 << 32


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


class Seen(NamedTuple):
    """A request asked for a block."""

    kind: int
    at: int


def warmth(known: int, blocks: int) -> int:
    percent = 100 * known // blocks if blocks else 0
    return COLD if percent < 15 else PARTLY if percent < 60 else MOSTLY


def kind_of(before: bool, warm: int) -> int:
    return 3 * before + warm


def width(bucket: int) -> int:
    return 4 if bucket == 0 else int(2 ** ((bucket - 1) // 4))


class ModelAges:
    def __init__(self, slots: int) -> None:
        self.unit = max(slots // 128, 1)
        self.waiting: dict[Hashable, Seen] = {}
        self.reused = [[0] * len(BUCKETS) for _ in KINDS]
        self.left = [[0] * len(BUCKETS) for _ in KINDS]
        self.worth = [[0] * len(BUCKETS) for _ in KINDS]

    def bucket(self, age: int) -> int:
        """By the edges of the buckets, one after another."""
        edge = 0
        for bucket in BUCKETS:
            edge += width(bucket) * self.unit
            if age < edge:
                return bucket
        return BUCKETS[-1]

    def asked(self, key: Hashable, kind: int, elsewhere: bool, now: int) -> None:
        self._forget_old(now)
        before = self.waiting.pop(key, None)
        if before is not None:
            (self.left if elsewhere else self.reused)[before.kind][self.bucket(now - before.at)] += ONE
        self.waiting[key] = Seen(kind, now)

    def _forget_old(self, now: int) -> None:
        for key, seen in list(self.waiting.items()):
            if now - seen.at > 2048 * self.unit:
                self.left[seen.kind][BUCKETS[-1]] += ONE
                del self.waiting[key]

    def learn(self, now: int) -> None:
        self._forget_old(now)
        left = [list(row) for row in self.left]
        for seen in self.waiting.values():
            left[seen.kind][self.bucket(now - seen.at)] += ONE
        risked = [
            [
                sum(self.reused[kind][at:]) + left[kind][at] // 2 + sum(left[kind][at + 1 :])
                for at in BUCKETS
            ]
            for kind in KINDS
        ]  # fmt: skip
        of_any = [
            SHARE * sum(self.reused[kind][at] for kind in KINDS) // (ONE + sum(risked[kind][at] for kind in KINDS))
            for at in BUCKETS
        ]
        for kind in KINDS:
            chances = [(SHARE * self.reused[kind][at] + ONE * of_any[at]) // (risked[kind][at] + ONE) for at in BUCKETS]
            self.worth[kind] = [best_rate(chances, begin) for begin in BUCKETS]
        for counts in (self.reused, self.left):
            for row in counts:
                row[:] = [count - count // 32 for count in row]

    def worth_at(self, kind: int, age: int) -> int:
        return self.worth[kind][self.bucket(age)]

    def least_worth(self, seen: Seen, now: int) -> int:
        return min(self.worth[seen.kind][: self.bucket(now - seen.at) + 1])


def best_rate(chances: list[int], begin: int) -> int:
    """Gittins' index, with whole numbers."""
    waits, found, time, best = SHARE, 0, 0, 0
    for at in BUCKETS[begin:]:
        now_found = waits * chances[at] // SHARE
        found += now_found
        time += (waits - now_found // 2) * width(at)
        waits -= now_found
        best = max(best, WORTH * found // time)
    return best


@dataclass
class Shadow:
    slots: int
    here: dict[Hashable, Seen] = field(default_factory=dict)
    found: int = 0


class ModelAdmission:
    def __init__(self, slots: int) -> None:
        self.history = Recent(slots * 4 * 2 // 3)
        self.ages = ModelAges(slots)
        self.shadows = {rule: Shadow(max(slots // 8, 1)) for rule in ("everything", "known", "worthier")}
        self.round = max(slots // 8, ROUND_MIN)
        self.now = self.sampled = 0
        self.rule = "everything"

    def asked(self, key: Hashable, position: int, before: bool, warm: int, elsewhere: bool) -> None:
        self.history.note(key)
        self.now += 1
        if position % SAMPLED_POSITIONS:
            return
        for rule, shadow in self.shadows.items():
            self._ask(rule, shadow, key, before, warm, elsewhere)
        self.ages.asked(key, kind_of(before, warm), elsewhere, self.now)
        self.sampled += 1
        if self.sampled == self.round:
            self._end_round()

    def _ask(self, rule: str, shadow: Shadow, key: Hashable, before: bool, warm: int, elsewhere: bool) -> None:
        if shadow.here.pop(key, None) is not None:
            shadow.found += 0 if elsewhere else ONE
        elif elsewhere:
            return
        elif len(shadow.here) == shadow.slots:
            victim = min(shadow.here, key=lambda one: self.rank(shadow.here[one]))
            if not self.takes(before, warm, shadow.here[victim], rule):
                return
            del shadow.here[victim]
        shadow.here[key] = Seen(kind_of(before, warm), self.now)

    def rank(self, seen: Seen) -> tuple[int, int]:
        """The block with the least goes."""
        return self.ages.least_worth(seen, self.now), seen.at

    def takes(self, before: bool, warm: int, victim: Seen, rule: str = "") -> bool:
        match rule or self.rule:
            case "known":
                return before or warm == MOSTLY
            case "worthier":
                return self.ages.worth_at(kind_of(before, warm), 0) >= self.ages.worth_at(
                    victim.kind, self.now - victim.at
                )
            case _:
                return True

    def _end_round(self) -> None:
        self.ages.learn(self.now)
        self.rule = "everything"
        for rule in ("known", "worthier"):
            if self.shadows[rule].found * 32 > self.shadows[self.rule].found * 33:
                self.rule = rule
        for shadow in self.shadows.values():
            shadow.found -= shadow.found // 4
        self.sampled = 0
