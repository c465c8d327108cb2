"""What each slot was filled with, and which blocks are complete: they must not change until the host says so.

Nothing here reads the device, nor its tables, which are the suspects. One rule covers most of what rewrites complete
blocks on purpose (a rewound draft, a window that goes round, a slot with a new owner): a step says which positions it
writes, and a complete block with one of them is another fill from then on. A block in which a reused prefix ends is
one already when its request comes: its rest will be written, by a step or by a load that begins at once. Copies between
slots and tiers take the fill along.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from operator import attrgetter
from typing import Literal, NamedTuple, cast

Occasion = Literal["filled", "reused", "returned", "freed", "live"]
MoveKind = Literal["onboard", "offload", "copy"]  # host to device, device to host, within the device
NOBODY = -1
NOWHERE = -1  # the slot of a block that a window has passed


@dataclass(eq=False, slots=True)
class Fill:
    """What one block holds. A block that moves takes its fill along; a slot that is written anew gets another one."""

    filler: int  # the request that computed it
    tokens: int = 0  # leading positions that were written
    complete: bool = False
    digests: bytes | None = None  # by layer, once they are known
    right_at: int = 0  # the last step behind which it was seen to be what was filled
    changed: bool = False  # it was seen to be something else


is_complete = attrgetter("complete")


class Looks(NamedTuple):
    """Blocks whose digests are wanted: to be kept where they are the first of a fill, or else to be compared. They stay
    together, since thousands may come at once: those of a long prompt that is found whole."""

    slots: list[int]
    fills: list[Fill]  # that are there
    occasion: Occasion
    reader: int = NOBODY  # the request that reuses them

    def add(self, slot: int, fill: Fill) -> None:
        self.slots.append(slot)
        self.fills.append(fill)

    def part(self, begin: int, end: int | None = None) -> "Looks":
        return Looks(self.slots[begin:end], self.fills[begin:end], self.occasion, self.reader)


class Write(NamedTuple):
    """One request's part of a step that has been enqueued."""

    request: int
    # Of its blocks, from that of the first written position on; None: all of them are known.
    slots: Sequence[int] | None
    begin: int  # the first position that the step writes
    end: int  # the one behind the last
    accepted: int  # positions below are kept for certain: less than `end` where drafts may be rewound


@dataclass(slots=True)
class _Sequence:
    slots: list[int]
    complete: int = 0  # leading blocks that are
    taken: int = 0  # leading blocks that others have filled


Unfilled = Callable[[int, Fill, int], None]  # slot, what is there, the request that reuses it


class FillBooks:
    """Called by the loop's thread alone, in the order in which work is given to the stream."""

    def __init__(
        self, tokens_per_block: int, unfilled: Unfilled, *, lookahead: int = 0, knows_all: bool = True
    ) -> None:
        """`lookahead`: KV of a position depends on so many tokens behind it, as that of draft layers does. `knows_all`:
        or else blocks may leave the device and come back unheard, so one that is unknown is taken as it is."""
        self.primary: dict[int, Fill] = {}
        self._tokens_per_block = tokens_per_block
        self._unfilled = unfilled
        self._lookahead = lookahead
        self._knows_all = knows_all
        self._host: dict[int, Fill] = {}
        self._live: dict[int, _Sequence] = {}
        self._away: dict[int, list[Fill | None]] = {}  # of requests without slots, what their blocks hold

    def still_there(self, looks: Looks) -> Looks:
        """Of these, the blocks whose slots still have those fills."""
        now = list(map(self.primary.get, looks.slots))
        if now == looks.fills:
            return looks
        there = [place for place, (fill, was) in enumerate(zip(now, looks.fills, strict=True)) if fill is was]
        slots, fills = [looks.slots[place] for place in there], [looks.fills[place] for place in there]
        return Looks(slots, fills, looks.occasion, looks.reader)

    def slots_of(self, request: int) -> list[int]:
        return self._live[request].slots

    def moved(self, kind: MoveKind, source: int, target: int, tokens: int) -> Looks:
        """A copy of the leading tokens of a block has been enqueued."""
        source_tier = self._host if kind == "onboard" else self.primary
        target_tier = self._host if kind == "offload" else self.primary
        fill = source_tier.get(source) or Fill(NOBODY)
        if not fill.complete or tokens < self._tokens_per_block:
            fill = Fill(fill.filler, min(fill.tokens, tokens))
        target_tier[target] = fill
        is_back = fill.complete and target_tier is self.primary
        return Looks([target], [fill], "returned") if is_back else Looks([], [], "returned")

    def admitted(self, request: int, slots: Sequence[int], reused: int, *, part_is_copied: bool = False) -> Looks:
        """A request has its blocks, and takes the first `reused` positions as they are. `part_is_copied`: a block
        inside which they end is a copy of its own, of which the books have not heard."""
        size, whole = self._tokens_per_block, reused // self._tokens_per_block
        self._live[request] = _Sequence(list(slots), whole, whole)
        looks = Looks(*self._whole_blocks(slots[:whole]), "reused", request)
        for place, slot in enumerate(slots[len(looks.slots) :], len(looks.slots)):
            wanted = min(size, max(0, reused - place * size))
            if part_is_copied and 0 < wanted < size:
                self.primary[slot] = Fill(NOBODY, wanted)
            elif slot != NOWHERE and (fill := self._taken(slot, wanted, request)) is not None:
                looks.add(slot, fill)
        return looks

    def _whole_blocks(self, slots: Sequence[int]) -> tuple[list[int], list[Fill]]:
        """These and what they hold, if there is nothing to say of any of them."""
        fills = list(map(self.primary.get, slots))
        if not self._knows_all and not any(fills) and NOWHERE not in slots:
            of_others = list(map(Fill, repeat(NOBODY), repeat(self._tokens_per_block), repeat(True, len(fills))))
            self.primary.update(zip(slots, of_others, strict=True))
            return list(slots), of_others
        if all(fills) and all(map(is_complete, fills)):
            return list(slots), cast("list[Fill]", fills)
        return [], []

    def _taken(self, slot: int, wanted: int, request: int) -> Fill | None:
        """The leading positions of a block, as they are. Returns what shall be looked at."""
        size = self._tokens_per_block
        fill = self.primary.get(slot)
        if fill is None:
            fill = Fill(NOBODY) if self._knows_all else Fill(NOBODY, size, complete=True)
            self.primary[slot] = fill
        if wanted == 0:
            self.primary[slot] = Fill(request)
        elif fill.tokens < wanted:
            self._unfilled(slot, fill, request)
            self.primary[slot] = Fill(fill.filler, wanted)  # said once
        elif wanted < size:
            self.primary[slot] = Fill(fill.filler, fill.tokens)  # a step will write the rest, or a load does now
        elif fill.complete:
            return fill
        return None

    def replaced(self, request: int, place: int, slot: int) -> Looks:
        """An equal block of another takes the place of its own. NOWHERE: a window has passed it."""
        self._live[request].slots[place] = slot
        fill = None if slot == NOWHERE else self._taken(slot, self._tokens_per_block, request)
        return Looks([], [], "reused") if fill is None else Looks([slot], [fill], "reused", request)

    def regrown(self, request: int, place: int, slot: int) -> None:
        """It has given back a block that it had not begun, and got another one for the same positions."""
        self._live[request].slots[place] = slot
        self.primary[slot] = Fill(request)

    def left(self, request: int, places_known: int) -> None:
        """It lets go of its slots: its blocks may leave the device. Only of the leading ones it is known where they
        were."""
        fills = [self.primary.get(slot) for slot in self._live[request].slots]
        self._away[request] = fills[:places_known] + [None] * len(fills[places_known:])

    def came_back(self, request: int, slots: Sequence[int]) -> Looks:
        """It has its blocks again, perhaps in other slots."""
        self._live[request].slots[:] = slots
        known, looks = self._away.pop(request), Looks([], [], "returned")
        for place, slot in enumerate(slots):
            fill = known[place] if place < len(known) else Fill(request)
            if slot == NOWHERE or self.primary.get(slot) is fill:
                continue
            if fill is None:
                self.primary.pop(slot, None)
                continue
            self.primary[slot] = fill
            if fill.complete:
                looks.add(slot, fill)
        return looks

    def shrunk(self, request: int, blocks: int) -> None:
        """It has given back the blocks behind these."""
        sequence = self._live[request]
        del sequence.slots[blocks:]
        sequence.complete = min(sequence.complete, blocks)
        sequence.taken = min(sequence.taken, blocks)

    def forget(self, slots: Iterable[int]) -> None:
        """What they hold may change unheard."""
        for slot in slots:
            self.primary.pop(slot, None)

    def grown(self, request: int, slots: Sequence[int]) -> None:
        """A request has got further blocks, which a step or a load will write."""
        for slot in slots:
            if slot != NOWHERE:
                self.primary[slot] = Fill(request)
        self._live[request].slots.extend(slots)

    def written(self, write: Write) -> Looks:
        """A step that writes these positions has been enqueued."""
        sequence = self._live.get(write.request)
        if sequence is None:
            sequence = self._live[write.request] = _Sequence([])
        if write.slots is not None:
            first = write.begin // self._tokens_per_block
            for slot, known in zip_longest(write.slots, sequence.slots[first:]):
                if slot not in (known, None):
                    self.primary[slot] = Fill(write.request)
            sequence.slots[first:] = write.slots
        begin = max(0, write.begin - self._lookahead)
        return self._fill(write.request, sequence, begin, write.end, write.accepted)

    def loaded(self, request: int, begin: int, end: int) -> Looks:
        """A load that wrote these positions is over; or steps wrote them, and they are kept for certain."""
        sequence, size = self._live[request], self._tokens_per_block
        place = sequence.complete
        if begin == place * size and end == begin + size:  # as those of an answer, one whole block after the other
            slot = sequence.slots[place]
            fill = self.primary.get(slot)
            if fill is not None and fill.filler == request and not fill.complete:
                fill.tokens, fill.complete, sequence.complete = size, True, place + 1
                return Looks([slot], [fill], "filled")
        return self._fill(request, sequence, begin, end, end)

    def released(self, request: int) -> Looks:
        """The request has ended, or waits again. What it has filled stays until its slots are given away."""
        sequence, looks = self._live.pop(request, None), Looks([], [], "freed")
        if self._away.pop(request, None) is not None or sequence is None:
            return looks
        for slot in sequence.slots[sequence.taken : sequence.complete]:
            fill = self.primary.get(slot)
            if fill is not None and fill.filler == request and fill.complete:
                looks.add(slot, fill)
        return looks

    def _fill(self, request: int, sequence: _Sequence, begin: int, end: int, kept: int) -> Looks:
        """These positions were written, and those below `kept` are kept for certain."""
        size, primary, slots = self._tokens_per_block, self.primary, sequence.slots
        place_begin, complete = begin // size, kept // size
        looks = Looks([], [], "filled")
        sequence.taken = min(sequence.taken, place_begin)
        first_place = min(sequence.complete, place_begin)
        sequence.complete = max(first_place, complete)
        for place in range(first_place, -(-end // size)):
            slot = slots[place]
            fill = primary.get(slot) or Fill(request)
            if place >= place_begin and slot != NOWHERE:
                first = begin % size if place == place_begin else 0
                # Or else nobody has written what stands before: this block will never be complete.
                if fill.tokens >= first:
                    if fill.filler != request or fill.tokens > first:
                        fill = Fill(request)
                    fill.tokens = min(size, end - place * size)
                    primary[slot] = fill
            if place < complete and fill.tokens == size and fill.filler == request and not fill.complete:
                fill.complete = True
                looks.add(slot, fill)
        return looks
