"""Section 11: the books of a tier that somebody else fills, in plain lists. Every call walks from the root again."""

from dataclasses import dataclass, field
from itertools import count

from .tier_admission import ModelAdmission
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
            for at in range(len(here), end):
                if not self._is_worth_a_slot(sequence, at):
                    self.declined = True
                    break
                block = self._fill(number, at, [*here, *claimed])
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

    def _tell_policy(self, sequence: TierSequence, end: int, known: int, reused: bool) -> None:
        while self.admission is not None and sequence.asked < end:
            at = sequence.asked
            spelled = sequence.root, tuple(self._content(sequence, each) for each in range(at + 1))
            if self.admission.asked(spelled, at, at < known, reused) and sequence.asked_before == at:
                sequence.asked_before += 1
            sequence.asked += 1
        if reused:
            sequence.asked_before = max(sequence.asked_before, end)

    def _is_worth_a_slot(self, sequence: TierSequence, at: int) -> bool:
        takes_new = self.admission is None or self.admission.takes_new
        return takes_new or at < sequence.asked_before or len(self.blocks) < self.slots

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

    def _fill(self, number: int, at: int, path: list[TierBlock]) -> TierBlock | None:
        sequence, parent = self.sequences[number], path[-1] if path else None
        if len(self.blocks) == self.slots:
            followed = {id(one.parent) for one in self.blocks if one.findable} | {id(parent)}
            leaves = [one for one in self.blocks if self._may_go(one) and id(one) not in followed]
            if not leaves:
                return None
            self.blocks.remove(min(leaves, key=lambda one: (one.priority, one.entered_at)))
            self.evicted += 1
        priority = sequence.priorities.get(at, PRIORITY_DEFAULT)
        self.blocks.append(TierBlock(sequence.root, parent, self._content(sequence, at), priority, number))
        return self.blocks[-1]

    def _forget_unused(self) -> None:
        """A block that was dropped goes once nobody uses it."""
        self.blocks = [one for one in self.blocks if one.findable or one.pins or not one.arrived]
