"""What each slot was filled with, and which blocks are complete: they must not change until the host says so.

Nothing here reads the device, nor its tables, which are the suspects. One rule covers most of what rewrites complete
blocks on purpose (a rewound draft, a window that goes round, a slot with a new owner): a step says which positions it
writes, and a complete block with one of them is another fill from then on. A block in which a reused prefix ends is
one already when its request comes: its rest will be written, by a step or by a load that begins at once. Copies between
slots and tiers take the fill along.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal, NamedTuple

Occasion = Literal["filled", "reused", "returned", "freed", "live"]
MoveKind = Literal["onboard", "offload", "copy"]  # host to device, device to host, within the device
NOBODY = -1


@dataclass(eq=False, slots=True)
class Fill:
    """What one block holds. A block that moves takes its fill along; a slot that is written anew gets another one."""

    filler: int  # the request that computed it
    tokens: int = 0  # leading positions that were written
    complete: bool = False
    digests: bytes | None = None  # by layer, once they are known
    right_at: int = 0  # the last step behind which it was seen to be what was filled
    changed: bool = False  # it was seen to be something else


class BlockLook(NamedTuple):
    """A block whose digest is wanted: to be kept if it is the first of its fill, or else to be compared."""

    slot: int
    fill: Fill
    occasion: Occasion
    reader: int = NOBODY  # the request that reuses it


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
    complete: int = field(default=0)  # leading blocks that are


Unfilled = Callable[[int, Fill, int], None]  # slot, what is there, the request that reuses it


class FillBooks:
    """Called by the loop's thread alone, in the order in which work is given to the stream."""

    def __init__(self, tokens_per_block: int, unfilled: Unfilled, *, lookahead: int = 0) -> None:
        """`lookahead`: KV of a position depends on so many tokens behind it, as that of draft layers does."""
        self.primary: dict[int, Fill] = {}
        self._tokens_per_block = tokens_per_block
        self._unfilled = unfilled
        self._lookahead = lookahead
        self._host: dict[int, Fill] = {}
        self._live: dict[int, _Sequence] = {}

    def holds(self, look: BlockLook) -> bool:
        """Whether the slot still has that fill."""
        return self.primary.get(look.slot) is look.fill

    def slots_of(self, request: int) -> Sequence[int]:
        return self._live[request].slots

    def moved(self, kind: MoveKind, source: int, target: int, tokens: int) -> Iterator[BlockLook]:
        """A copy of the leading tokens of a block has been enqueued."""
        source_tier = self._host if kind == "onboard" else self.primary
        target_tier = self._host if kind == "offload" else self.primary
        fill = source_tier.get(source) or Fill(NOBODY)
        if not fill.complete or tokens < self._tokens_per_block:
            fill = Fill(fill.filler, min(fill.tokens, tokens))
        target_tier[target] = fill
        if fill.complete and target_tier is self.primary:
            yield BlockLook(target, fill, "returned")

    def admitted(self, request: int, slots: Sequence[int], reused: int) -> Iterator[BlockLook]:
        """A request has its blocks, and takes the first `reused` positions as they are."""
        size = self._tokens_per_block
        self._live[request] = _Sequence(list(slots), reused // size)
        for place, slot in enumerate(slots):
            wanted = min(size, max(0, reused - place * size))
            fill = self.primary.get(slot) or Fill(NOBODY)
            if wanted == 0:
                self.primary[slot] = Fill(request)
            elif fill.tokens < wanted:
                self._unfilled(slot, fill, request)
                self.primary[slot] = Fill(fill.filler, wanted)  # said once
            elif wanted < size:
                self.primary[slot] = Fill(fill.filler, fill.tokens)  # a step will write the rest, or a load does now
            elif fill.complete:
                yield BlockLook(slot, fill, "reused", request)

    def grown(self, request: int, slots: Sequence[int]) -> None:
        """A request has got further blocks, which a step or a load will write."""
        for slot in slots:
            self.primary[slot] = Fill(request)
        self._live[request].slots.extend(slots)

    def written(self, write: Write) -> Iterator[BlockLook]:
        """A step that writes these positions has been enqueued."""
        sequence = self._live.setdefault(write.request, _Sequence([]))
        first = write.begin // self._tokens_per_block
        if write.slots is not None:
            for slot, known in zip_longest(write.slots, sequence.slots[first:]):
                if slot not in (known, None):
                    self.primary[slot] = Fill(write.request)
            sequence.slots[first:] = write.slots
        self._fill(write.request, sequence, max(0, write.begin - self._lookahead), write.end)
        yield from self._completed(write.request, sequence, write.accepted)

    def loaded(self, request: int, begin: int, end: int) -> Iterator[BlockLook]:
        """A load that wrote these positions is over."""
        sequence = self._live[request]
        self._fill(request, sequence, begin, end)
        yield from self._completed(request, sequence, end)

    def released(self, request: int) -> Iterator[BlockLook]:
        """The request has ended, or waits again. What it has filled stays until its slots are given away."""
        sequence = self._live.pop(request, None)
        for slot in sequence.slots[: sequence.complete] if sequence else ():
            fill = self.primary[slot]
            if fill.filler == request and fill.complete:
                yield BlockLook(slot, fill, "freed")

    def _fill(self, request: int, sequence: _Sequence, begin: int, end: int) -> None:
        size = self._tokens_per_block
        sequence.complete = min(sequence.complete, begin // size)
        for place in range(begin // size, -(-end // size)):
            slot, first = sequence.slots[place], max(begin - place * size, 0)
            fill = self.primary.get(slot) or Fill(request)
            if fill.tokens < first:
                continue  # nobody has written what stands before: this block will never be complete
            if fill.filler != request or fill.tokens > first:
                fill = Fill(request)
            fill.tokens = min(end - place * size, size)
            self.primary[slot] = fill

    def _completed(self, request: int, sequence: _Sequence, kept: int) -> Iterator[BlockLook]:
        size = self._tokens_per_block
        for place in range(sequence.complete, kept // size):
            slot = sequence.slots[place]
            fill = self.primary[slot]
            sequence.complete = place + 1
            if fill.filler == request and fill.tokens == size and not fill.complete:
                fill.complete = True
                yield BlockLook(slot, fill, "filled")
