"""Section 11: the books of a tier that somebody else fills, in plain lists. Every call walks from the root again."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count

from .tier_admission import COLD, ModelAdmission, Seen, kind_of, warmth
from .values import PRIORITY_DEFAULT, Extras, RootKey, Tokens, UnknownRequest


@dataclass(eq=False)
class TierBlock:
    """A block that lies in a slot, or will."""

    root: RootKey
    parent: "TierBlock | None"  # None: it is the first of its prefix
    content: tuple[Tokens, Extras]
    priority: int
    writer: int
    arrived: bool = False
    findable: bool = True
    bad: bool = False
    pins: int = 0
    entered_at: int = 0  # when it last became one that could go
    seen: Seen = field(default_factory=lambda: Seen(0, 0))


@dataclass
class TierSequence:
    root: RootKey
    extra_keys: Extras
    tokens: Tokens = ()
    priorities: dict[int, int] = field(default_factory=dict)
    settled: int = 0
    claimed_from: int = 0
    asked: int = 0  # leading blocks that the policy knows of
    asked_before: int = 0
    warm: int = COLD
    is_declined: bool = False


class ModelTierIndex:
    def __init__(self, slots: int, tokens_per_block: int, admission: str = "all") -> None:
        self.slots, self.tokens_per_block = slots, tokens_per_block
        self.admission = ModelAdmission(slots) if admission == "adaptive" else None
        self.declined = False  # by the last claim
        self.blocks: list[TierBlock] = []
        self.sequences: dict[int, TierSequence] = {}
        self.evicted = 0
        self._numbers = count(1)
        self._clock = count(1)

    def open(self, root: RootKey, extra_keys: Extras) -> int:
        number = next(self._numbers)
        self.sequences[number] = TierSequence(root, extra_keys)
        return number

    def extend(self, number: int, tokens: Tokens) -> None:
        sequence = self._at(number)
        if len(tokens) % self.tokens_per_block:
            raise ValueError
        sequence.tokens += tokens

    def close(self, number: int) -> None:
        self._at(number)
        del self.sequences[number]

    def held(self, number: int) -> int:
        here = self._here(self._at(number))
        if here and self._may_go(here[-1]):
            here[-1].entered_at = next(self._clock)
        return len(self._readable(here))

    def claim(
        self, number: int, end: int, known: int, priorities: tuple[int, ...], reused: bool = False
    ) -> tuple[int, list[TierBlock]] | None:
        sequence = self._at(number)
        if (
            end > len(sequence.tokens) // self.tokens_per_block
            or len(priorities) > end
            or max(priorities, default=0) > 100
        ):
            raise ValueError
        sequence.priorities.update(zip(range(end - len(priorities), end), priorities, strict=True))
        here = self._here(sequence)
        if len(here) < min(len(self._path(sequence)), end):
            return None
        self._tell_policy(sequence, end, known, reused)
        self.declined = False
        claimed: list[TierBlock] = []
        first = min(len(here), end)
        sequence.settled = max(sequence.settled, min(known, end))
        if sequence.settled - len(here) <= self.slots - len(self.blocks) or len(here) == sequence.settled:
            sequence.is_declined = sequence.is_declined and not reused
            for at in range(len(here), end):
                block = self._fill(number, at, [*here, *claimed], reused)
                self.declined = sequence.is_declined
                if block is None:
                    break
                claimed.append(block)
        if claimed:
            sequence.claimed_from = first
            sequence.settled = first + len(claimed)
        return first, claimed

    def commit(self, claimed: list[TierBlock]) -> None:
        for block in claimed:
            block.arrived = True
            block.entered_at = next(self._clock)
        self._forget_unused()

    def abandon(self, claimed: list[TierBlock]) -> None:
        for block in claimed:
            self.blocks.remove(block)
            if block.writer in self.sequences:
                writer = self.sequences[block.writer]
                writer.settled = min(writer.settled, writer.claimed_from)

    def set_aside(self, claimed: list[TierBlock]) -> None:
        self.abandon(claimed)
        self.blocks += claimed
        for block in claimed:
            block.findable = False

    def pin(self, number: int, first: int, end: int) -> list[TierBlock]:
        pinned = self._readable(self._here(self._at(number)))[first:end]
        for block in pinned:
            block.pins += 1
        return pinned

    def unpin(self, pinned: list[TierBlock]) -> None:
        for block in pinned:
            block.pins -= 1
            if not block.pins:
                block.entered_at = next(self._clock)
        self._forget_unused()

    def condemn(self, pinned: list[TierBlock]) -> None:
        for block in pinned:
            block.bad = block.findable

    def drop(self) -> None:
        for block in self.blocks:
            block.findable = block.bad = False
        for sequence in self.sequences.values():
            sequence.settled = 0
            sequence.is_declined = False
        self._forget_unused()

    @property
    def owned(self) -> int:
        return sum(not block.arrived or block.pins > 0 for block in self.blocks)

    # ------------------------------------------------------------------------------------------ how

    def _at(self, number: int) -> TierSequence:
        if number not in self.sequences:
            raise UnknownRequest
        return self.sequences[number]

    def _content(self, sequence: TierSequence, at: int) -> tuple[Tokens, Extras]:
        begin, end = at * self.tokens_per_block, (at + 1) * self.tokens_per_block
        extras = tuple((a - begin, b - begin, digest) for a, b, digest in sequence.extra_keys if a < end and b > begin)
        return sequence.tokens[begin:end], extras

    def _spelled(self, sequence: TierSequence, at: int) -> Hashable:
        return sequence.root, tuple(self._content(sequence, each) for each in range(at + 1))

    def _tell_policy(self, sequence: TierSequence, end: int, known: int, reused: bool) -> None:
        if self.admission is None:
            return
        here = self._here(sequence)
        if not sequence.asked and end:
            blocks = len(sequence.tokens) // self.tokens_per_block
            leading = blocks if reused else len(here)
            while leading < blocks and self._spelled(sequence, leading) in self.admission.history:
                leading += 1
            sequence.asked_before, sequence.warm = leading, warmth(leading, blocks)
        if reused:
            sequence.asked_before = max(sequence.asked_before, end)
        for at in range(sequence.asked, end):
            before = at < sequence.asked_before
            self.admission.asked(self._spelled(sequence, at), at, before, sequence.warm, at < known)
            if at < len(here):
                here[at].seen = self._seen(sequence, at)
                if self._may_go(here[at]):
                    here[at].entered_at = next(self._clock)
        sequence.asked = max(sequence.asked, end)

    def _seen(self, sequence: TierSequence, at: int) -> Seen:
        if self.admission is None:
            return Seen(0, 0)
        return Seen(kind_of(at < sequence.asked_before, sequence.warm), self.admission.now)

    def _path(self, sequence: TierSequence) -> list[TierBlock]:
        """The blocks of the sequence that are here, from its beginning, arrived or not."""
        path: list[TierBlock] = []
        for at in range(len(sequence.tokens) // self.tokens_per_block):
            wanted = sequence.root, path[-1] if path else None, self._content(sequence, at)
            same = [one for one in self.blocks if one.findable and (one.root, one.parent, one.content) == wanted]
            assert len(same) <= 1
            if not same:
                break
            path += same
        return path

    def _here(self, sequence: TierSequence) -> list[TierBlock]:
        path = self._path(sequence)
        here = path[: next((at for at, one in enumerate(path) if not one.arrived), len(path))]
        sequence.settled = max(sequence.settled, len(here))
        return here

    def _readable(self, here: list[TierBlock]) -> list[TierBlock]:
        return here[: next((at for at, one in enumerate(here) if one.bad), len(here))]

    def _may_go(self, block: TierBlock) -> bool:
        return block.arrived and block.findable and not block.pins

    def _fill(self, number: int, at: int, path: list[TierBlock], reused: bool) -> TierBlock | None:
        sequence, parent = self.sequences[number], path[-1] if path else None
        if sequence.is_declined:
            return None
        if len(self.blocks) == self.slots:
            victim = self._victim(parent)
            if victim is None:
                return None
            if self.admission is not None and not reused:
                before = at < sequence.asked_before
                sequence.is_declined = not self.admission.takes(before, sequence.warm, victim.seen)
            if sequence.is_declined:
                return None
            self.blocks.remove(victim)
            self.evicted += 1
        priority = sequence.priorities.get(at, PRIORITY_DEFAULT)
        block = TierBlock(sequence.root, parent, self._content(sequence, at), priority, number)
        block.seen = self._seen(sequence, at)
        self.blocks.append(block)
        return block

    def _victim(self, parent: TierBlock | None) -> TierBlock | None:
        """Of each kind the one that has waited the longest, and of these the one that is worth the least."""
        followed = {id(one.parent) for one in self.blocks if one.findable} | {id(parent)}
        leaves = [one for one in self.blocks if self._may_go(one) and id(one) not in followed]
        heads: dict[int, TierBlock] = {}
        for one in sorted(leaves, key=lambda one: (one.priority, one.entered_at)):
            heads.setdefault(one.seen.kind, one)
        if self.admission is None:
            return heads.get(0)
        rank = self.admission.rank
        in_order = (heads[kind] for kind in sorted(heads))
        return min(in_order, key=lambda one: (one.priority, *rank(one.seen)), default=None)

    def _forget_unused(self) -> None:
        """A block that was dropped goes once nobody uses it."""
        self.blocks = [one for one in self.blocks if one.findable or one.pins or not one.arrived]
