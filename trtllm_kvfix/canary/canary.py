"""The canary of one engine: it has blocks digested behind each step, and compares.

A kernel on the model's own stream makes the digests behind the step, where the blocks lie. The loop waits for nothing:
digests that have not arrived are looked at later, and what does not fit into their ring waits its turn, or is missed
and counted.
"""

import random
import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from itertools import chain
from math import gcd
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

import numpy as np

from trtllm_kvfix.canary.fills import NOBODY, Fill, FillBooks, Looks, MoveKind, Occasion, Write
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import described, log
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.native import Device, DeviceError, DigestRing, TransferItem
from trtllm_kvfix.staging.in_use import keep

BLOCKS_PER_STEP = 8  # that live, where nobody asks for another number
STEPS_IN_RING = 3  # one whose looks are read, while the next two may be on their way
STEP_BYTES_MAX = 16 << 20  # of blocks that are looked at because something has happened to them
STEP_LOOKS_MAX = 256  # the same
DUE_MAX = 16384  # of them that wait for a step with room
ROUND_STRIDES_MIN = 16  # from the beginning of the list to its end, so that a step's slots are one slice of it, or two
STALE_PER_SLOT_MAX = 16  # slots that a call throws out for each that it wants: many at once take several steps
FINDINGS_MAX = 100  # that are kept; all are counted
FINDINGS_ATTESTED = 10
STEPS_REMEMBERED = 1024  # with the requests that they wrote for
WRITERS_MAX = 16  # named in a finding

PART_BYTES = 32 << 10  # of a layer, each digested by a thread block of the kernel

OBSERVES = "observes"

slots_of, digests_of = attrgetter("slots"), attrgetter("digests")

Kind = Literal["changed", "unfilled"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COUNTED = (
    counters.canary_compared_blocks,
    counters.canary_missed_looks,
    counters.canary_changed_blocks,
    counters.canary_unfilled_blocks,
)
# The hazards that leave such a trace. A guess: a defect that nobody knows yet leaves it as well.
FITTING: dict[tuple[Kind, Occasion], tuple[str, ...]] = {
    ("unfilled", "reused"): ("H8",),
    ("changed", "returned"): ("H5", "H1", "H2", "H7"),
    **{("changed", occasion): ("H1", "H2", "H5", "H7") for occasion in ("reused", "freed", "live")},
}


@dataclass(frozen=True)
class Finding:
    kind: Kind  # a complete block has changed, or one is reused that nobody was seen to fill
    occasion: Occasion  # at which it was seen
    slot: int
    layers: tuple[int, ...]  # that differ; none where nothing was compared
    filler: int  # the request that filled the block; -1: none was seen
    reader: int  # the request that takes it now; -1: none does
    right_at: int  # behind this step it was still what was filled
    wrong_at: int  # behind this one it was not
    writers: tuple[int, ...]  # requests that wrote between the two, at most some
    fixes_off: tuple[str, ...]
    hazards: tuple[str, ...]  # whose pattern fits, and whose fix is off: a guess


@dataclass
class CanaryReport:
    """May be attached to a bug report: it has no tokens, and no contents of blocks."""

    state: str
    blocks_per_step: int
    steps: int = 0
    blocks_taken: int = 0  # whose first digest was taken
    blocks_compared: dict[str, int] = field(default_factory=dict)  # by occasion
    missed: int = 0  # looks that were due, and came too late or never
    counts: dict[str, int] = field(default_factory=dict)  # findings by kind
    findings: list[Finding] = field(default_factory=list)  # the first ones


class Pool(NamedTuple):
    """Where blocks lie on the device, or their parts of some layers."""

    address: int
    slot_bytes: int
    layers: Sequence[int]  # their numbers, as they lie in a slot, one behind the other

    @property
    def digested(self) -> tuple[int, int, int, int]:
        parts = max(1, self.slot_bytes // len(self.layers) // PART_BYTES)
        return self.address, self.slot_bytes, len(self.layers), parts


class Rounds:
    """Rounds over slots, each in a new random order, so that nothing in step with one escapes for ever.

    A slot that comes during a round waits for the next one. So a round ends, however many come, and each slot is drawn
    again. An order is a stride through a list that the last round has left: no step pays for more than it draws.
    """

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._known: set[int] = set()
        self._slots: list[int] = []  # of this round
        self._left = 0  # of them
        self._place, self._stride = 0, 1
        self._following: list[int] = []  # slots of the next round

    def add(self, slots: Iterable[int]) -> None:
        new = [slot for slot in dict.fromkeys(slots) if slot not in self._known]
        self._known.update(new)
        self._following += new

    def draw(self, count: int, fill_of: Callable[[int], Fill | None]) -> Looks:
        """The next slots of this round, fewer at its end, and what they hold. A slot whose digests are not known any
        more has to be added again."""
        if not self._left:
            self._begin_round()
        found: list[int] = []
        fills: list[Fill] = []
        for _ in range(STALE_PER_SLOT_MAX):
            wanted = min(count - len(found), self._left)
            if not wanted:
                break
            slots = self._next(wanted)
            of_slots = list(map(fill_of, slots))
            if not (all(of_slots) and all(map(digests_of, of_slots))):
                known = {slot: fill for slot, fill in zip(slots, of_slots, strict=True) if fill and fill.digests}
                self._known.difference_update(set(slots) - known.keys())
                slots, of_slots = list(known), list(known.values())
            found += slots
            fills += cast("list[Fill]", of_slots)
        self._following += found
        return Looks(found, fills, "live")

    def _next(self, count: int) -> list[int]:
        slots, stride, first = self._slots, self._stride, self._place
        found: list[int] = []
        while (wanted := count - len(found)) > 0:
            part = slots[first : first + wanted * stride : stride]
            found += part
            first += len(part) * stride
            if first >= len(slots):  # it goes round
                first -= len(slots)
        self._place, self._left = first, self._left - count
        return found

    def _begin_round(self) -> None:
        self._slots, self._following = self._following, []
        self._left = size = len(self._slots)
        if size:
            stride_max = max(1, size // ROUND_STRIDES_MIN)
            self._place, self._stride = self._random.randrange(size), self._random.randint(1, stride_max)
            while gcd(self._stride, size) != 1:  # or else it comes round before it has been everywhere
                self._stride = self._random.randint(1, stride_max)


Method = TypeVar("Method", bound=Callable[..., None])


class StandsDown(Protocol):
    @property
    def fault(self) -> str | None: ...
    def stand_down(self, error: Exception) -> None: ...


def guarded(method: Method) -> Method:
    """A fault of ours ends the canary, and never the loop."""

    @wraps(method)
    def call(self: StandsDown, *args: Any) -> None:
        if self.fault is None:
            try:
                method(self, *args)
            except Exception as error:
                self.stand_down(error)

    return cast("Method", call)


class Canary:
    """Called by the loop's thread alone, in the order in which work is given to the stream."""

    def __init__(
        self, device: Device, stream: int, pools: Sequence[Pool], tokens_per_block: int, blocks_per_step: int,
        fixes_off: Collection[str] = (), hazards: Collection[str] = (), seed: int | None = None,
        say: Callable[..., None] = log.error, knows_all: bool = True,
    ) -> None:  # fmt: skip
        """`pools`: a block has the same slot in each. `hazards`: those that no fix keeps away here. `seed`: for the
        key, and for the order of looks at live blocks. `knows_all`: as in FillBooks."""
        if blocks_per_step < 1:
            raise SettingsError(f"blocks_per_step is {blocks_per_step}; it must be at least 1, or the canary is off")
        self.fault: str | None = None
        self.books = FillBooks(tokens_per_block, self._unfilled, knows_all=knows_all)
        self._blocks_per_step = blocks_per_step
        self._fixes_off, self._hazards = tuple(sorted(fixes_off)), frozenset(hazards)
        self._random = random.Random(secrets.randbits(64) if seed is None else seed)
        self._layers = [layer for pool in pools for layer in pool.layers]
        self._extra = min(STEP_LOOKS_MAX, max(1, STEP_BYTES_MAX // sum(pool.slot_bytes for pool in pools)))
        places = STEPS_IN_RING * (self._extra + blocks_per_step)
        self._due: deque[Looks] = deque()  # because something has happened to the blocks
        self._waiting = 0  # blocks in it
        self._left = self._extra  # of them in this step
        self._rounds = Rounds(self._random)  # over blocks whose digests are known
        self._writers: deque[tuple[int, Sequence[int]]] = deque(maxlen=STEPS_REMEMBERED)
        self._say = say
        self._said: set[tuple[Kind, Occasion]] = set()
        self._compared: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._report = CanaryReport(OBSERVES, blocks_per_step)
        self._counted: tuple[int, ...] = (0,) * len(COUNTED)
        self._closed = False
        self._on_way: deque[tuple[list[Looks], int]] = deque()  # and the step behind which they were sent
        try:
            self._ring = ring_of(device, stream, pools, places, self._random.getrandbits(64))
        except DeviceError as error:  # no kernels, or too little memory that can be pinned
            self.stand_down(error)

    # ---- what the loop does ----

    @guarded
    def moved(self, items: Iterable[TransferItem]) -> None:
        """Copies of blocks are about to be enqueued."""
        for item in items:
            kind = cast("MoveKind", item.kind)
            self._add(self.books.moved(kind, item.slot_src, item.slot_dst, item.tokens))

    @guarded
    def admitted(self, request: int, slots: Sequence[int], reused: int, part_is_copied: bool = False) -> None:
        self._add(self.books.admitted(request, slots, reused, part_is_copied=part_is_copied))

    @guarded
    def replaced(self, request: int, place: int, slot: int) -> None:
        self._add(self.books.replaced(request, place, slot))

    @guarded
    def regrown(self, request: int, place: int, slot: int) -> None:
        self.books.regrown(request, place, slot)

    @guarded
    def shrunk(self, request: int, blocks: int) -> None:
        self.books.shrunk(request, blocks)

    @guarded
    def left(self, request: int, places_known: int) -> None:
        """A request has let go of its slots."""
        self.books.left(request, places_known)

    @guarded
    def came_back(self, request: int, slots: Sequence[int]) -> None:
        self._add(self.books.came_back(request, slots))

    @guarded
    def forget(self, slots: Iterable[int]) -> None:
        """Somebody may write to them unheard."""
        self.books.forget(slots)

    @guarded
    def loaded(self, request: int, begin: int, end: int) -> None:
        self._add(self.books.loaded(request, begin, end))

    @guarded
    def grown(self, request: int, slots: Sequence[int]) -> None:
        """A request has got further blocks, and no step that writes them has been enqueued yet."""
        self.books.grown(request, slots)

    @guarded
    def wrote(self, writes: Iterable[tuple[int, int, int]]) -> None:
        """Steps that `step` was told of have written these positions as well: of a request, from one to another. Its
        slots are known, and the positions are kept for certain."""
        self.went_on((*write, ()) for write in writes)

    @guarded
    def went_on(self, parts: Iterable[tuple[int, int, int, Sequence[int]]]) -> None:
        """As `wrote`, and then each has got further blocks in these slots."""
        loaded, grown = self.books.loaded, self.books.grown
        all_looks = Looks([], [], "filled")
        for request, begin, end, slots in parts:
            if end > begin:
                looks = loaded(request, begin, end)
                all_looks.slots.extend(looks.slots)
                all_looks.fills.extend(looks.fills)
            if slots:
                grown(request, slots)
        self._add(all_looks)

    @guarded
    def step(self, writes: Sequence[Write], writers: Sequence[int] = ()) -> None:
        """A step has been enqueued that writes these positions. `writers`: requests of which it has written others.
        They are kept as they are."""
        self._report.steps = step = self._report.steps + 1
        all_writers = [*(write.request for write in writes), *writers] if writes else writers
        self._writers.append((step, all_writers))
        self._read()
        for write in writes:
            self._add(self.books.written(write))
        self._left = self._extra
        room = min(self._left, self._ring.free)
        due = self._due_ones(room) if self._due else []
        taken = sum(map(len, map(slots_of, due)))
        self._left -= taken
        live = min(self._blocks_per_step, self._ring.free - taken)
        self._send([*due, self._rounds.draw(live, self.books.primary.get)])

    @guarded
    def released(self, request: int) -> None:
        """Its blocks are looked at first, and alone: its slots may be given away at once, and of others that was not
        heard yet."""
        looks, room = self.books.released(request), min(self._left, self._ring.free)
        if len(looks.slots) > room:
            self._add(looks.part(room))
            looks = looks.part(0, room)
        self._left -= len(looks.slots)
        self._send([looks])

    @guarded
    def lost(self, request: int) -> None:
        """A request has ended unheard: its slots may be others' by now."""
        self.books.released(request)

    @guarded
    def read(self) -> None:
        """Compare what has arrived. The loop's steps do the same."""
        self._read()

    def report(self) -> CanaryReport:
        report = self._report
        report.blocks_compared, report.counts = dict(+self._compared), dict(self._counts)
        report.state = OBSERVES if self.fault is None else f"stood down in step {report.steps}: {self.fault}"
        return report

    def stand_down(self, error: Exception) -> None:
        self.fault = self.fault or described(error)
        flight.note(flight.CANARY_STOOD_DOWN, self._report.steps, text=self.fault)
        log.error(
            "the canary stands down: it no longer sees whether cached KV changes. The server goes on", error=error
        )

    def attested(self) -> dict[str, Any]:
        """For `status`. Nothing in it changes with every step."""
        found = self.report()
        shown = [{**asdict(each), "text": sentence(each)} for each in found.findings[:FINDINGS_ATTESTED]]
        return {"state": found.state, "counts": found.counts, "findings": shown}

    def count(self) -> None:
        """Add to the counters what happened since the last call."""
        found = self.report()
        now = (sum(found.blocks_compared.values()), found.missed, *(found.counts.get(kind, 0) for kind in KINDS))
        for counter, value, before in zip(COUNTED, now, self._counted, strict=True):
            counter.add(value - before)
        self._counted = now
        counters.canary_observes.put(self.fault is None and not self._closed)

    def close(self) -> None:
        self._closed = True
        try:
            if hasattr(self, "_ring"):  # it may have stood down before it had one
                keep(self._ring, self._ring)  # the device may still use its memory
        except Exception as error:
            self.stand_down(error)

    # ---- looks ----

    def _add(self, looks: Looks) -> None:
        count, room = len(looks.slots), DUE_MAX - self._waiting
        if count > room:
            self._report.missed += count - room
            looks, count = looks.part(0, room), room
        self._waiting += count
        if 0 < count <= STEP_LOOKS_MAX:
            self._due.append(looks)
        else:  # a step takes a part, and does not copy all that wait
            self._due.extend(looks.part(begin, begin + STEP_LOOKS_MAX) for begin in range(0, count, STEP_LOOKS_MAX))

    def _due_ones(self, room: int) -> list[Looks]:
        found: list[Looks] = []
        while self._due and room > 0:
            looks = self._due.popleft()
            if len(looks.slots) > room:
                self._due.appendleft(looks.part(room))
                looks = looks.part(0, room)
            there = self.books.still_there(looks)
            self._waiting -= len(looks.slots)
            self._report.missed += len(looks.slots) - len(there.slots)
            room -= len(there.slots)
            found.append(there)
        return found

    def _send(self, all_looks: list[Looks]) -> None:
        slots = list(chain.from_iterable(map(slots_of, all_looks)))
        if slots:
            self._ring.send(slots)
            self._on_way.append((all_looks, self._report.steps))

    def _read(self) -> None:
        for found in self._ring.arrived():
            all_looks, step = self._on_way.popleft()
            begin = 0
            for looks in all_looks:
                end = begin + len(looks.slots)
                self._take(looks, found[begin:end], step)
                begin = end

    def _take(self, looks: Looks, found: list[bytes], step: int) -> None:
        """Most are all the first of their fills, or all as they were."""
        if looks.occasion != "live":
            self._rounds.add(looks.slots)
        known = list(map(digests_of, looks.fills))
        if found == known:
            for fill in looks.fills:
                fill.changed, fill.right_at = False, step
            self._compared[looks.occasion] += len(found)
            return
        for slot, fill, digests in zip(looks.slots, looks.fills, found, strict=True):
            if fill.digests is None:
                fill.digests, fill.right_at = digests, step
                self._report.blocks_taken += 1
            else:
                self._compare(slot, fill, digests, looks, step)

    def _compare(self, slot: int, fill: Fill, digests: bytes, looks: Looks, step: int) -> None:
        self._compared[looks.occasion] += 1
        differing = differing_layers(cast("bytes", fill.digests), digests)
        if not differing:
            fill.changed, fill.right_at = False, step
        elif not fill.changed:
            fill.changed = True
            occasion = "live" if looks.occasion == "filled" else looks.occasion
            layers = tuple(self._layers[place] for place in differing)
            self._find("changed", occasion, slot, fill, looks.reader, layers, step)

    # ---- findings ----

    def _unfilled(self, slot: int, fill: Fill, reader: int) -> None:
        self._find("unfilled", "reused", slot, fill, reader, (), self._report.steps)

    def _find(
        self, kind: Kind, occasion: Occasion, slot: int, fill: Fill, reader: int, layers: tuple[int, ...], step: int
    ) -> None:
        is_dated = kind == "changed"
        between = [
            request for at, requests in self._writers if is_dated and fill.right_at < at <= step for request in requests
        ]
        fitting = tuple(hazard for hazard in FITTING[kind, occasion] if hazard in self._hazards)
        finding = Finding(
            kind, occasion, slot, layers, fill.filler, reader, fill.right_at, step,
            tuple(dict.fromkeys(between))[:WRITERS_MAX], self._fixes_off, fitting,
        )  # fmt: skip
        self._counts[kind] += 1
        flight.note(flight.CANARY_SPOKE, slot, fill.filler, reader, step, text=f"{kind}, {occasion}")
        if len(self._report.findings) < FINDINGS_MAX:
            self._report.findings.append(finding)
        if (kind, occasion) not in self._said:
            self._said.add((kind, occasion))
            self._say("canary: %s. Others of this kind are counted, not logged", sentence(finding))


def ring_of(device: Device, stream: int, pools: Sequence[Pool], places: int, key: int) -> DigestRing:
    if not device.has_kernels:
        raise DeviceError(f"{device.name} has no kernels: they are built where nvcc is found")
    return device.digest_ring(stream, [pool.digested for pool in pools], places, key)


def differing_layers(kept: bytes, found: bytes) -> tuple[int, ...]:
    if kept == found:
        return ()
    return tuple(np.flatnonzero(np.frombuffer(kept, np.uint64) != np.frombuffer(found, np.uint64)).tolist())


def sentence(finding: Finding) -> str:
    """One finding in words."""
    filler = "no request" if finding.filler == NOBODY else f"request {finding.filler}"
    reader = "" if finding.reader == NOBODY else f", which request {finding.reader} reuses"
    fits = f"{' or '.join(finding.hazards)} would do that" if finding.hazards else "no known hazard without a fix fits"
    if finding.kind == "unfilled":
        return f"block in slot {finding.slot}{reader}, was never filled to its end ({filler} began); {fits}"
    return (
        f"block in slot {finding.slot} of {filler}{reader}, has changed between steps {finding.right_at} and "
        f"{finding.wrong_at} in layers {', '.join(map(str, finding.layers))} (seen: {finding.occasion}); {fits}"
    )
