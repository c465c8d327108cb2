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
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

from trtllm_kvfix.canary.fills import NOBODY, Occasion, Write
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.log import described, log
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.native import Device, DeviceError, DigestRing, FillBooks, TransferItem
from trtllm_kvfix.staging.in_use import keep

BLOCKS_PER_STEP = 8  # that live, where nobody asks for another number
STEPS_IN_RING = 3  # one whose looks are read, while the next two may be on their way
STEP_BYTES_MAX = 16 << 20  # of blocks that are looked at because something has happened to them
STEP_LOOKS_MAX = 256  # the same
DUE_MAX = 16384  # of them that wait for a step with room
FINDINGS_MAX = 100  # that are kept; all are counted
FINDINGS_ATTESTED = 10
STEPS_REMEMBERED = 1024  # with the requests that they wrote for
WRITERS_MAX = 16  # named in a finding

PART_BYTES = 32 << 10  # of a layer, each digested by a thread block of the kernel

OBSERVES = "observes"

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
        self._fixes_off, self._hazards = tuple(sorted(fixes_off)), frozenset(hazards)
        source = random.Random(secrets.randbits(64) if seed is None else seed)
        self._layers = [layer for pool in pools for layer in pool.layers]
        step_looks_max = min(STEP_LOOKS_MAX, max(1, STEP_BYTES_MAX // sum(pool.slot_bytes for pool in pools)))
        self.books = FillBooks(
            tokens_per_block, len(self._layers), due_max=DUE_MAX, step_looks_max=step_looks_max,
            blocks_per_step=blocks_per_step, seed=source.getrandbits(64), knows_all=knows_all,
        )  # fmt: skip
        self._writers: deque[tuple[int, Sequence[int]]] = deque(maxlen=STEPS_REMEMBERED)
        self._say = say
        self._said: set[tuple[Kind, Occasion]] = set()
        self._counts: Counter[str] = Counter()
        self._report = CanaryReport(OBSERVES, blocks_per_step)
        self._counted: tuple[int, ...] = (0,) * len(COUNTED)
        self._closed = False
        try:
            places = STEPS_IN_RING * (step_looks_max + blocks_per_step)
            self._ring = ring_of(device, stream, pools, places, source.getrandbits(64))
        except DeviceError as error:  # no kernels, or too little memory that can be pinned
            self.stand_down(error)

    # ---- what the loop does ----

    @guarded
    def moved(self, items: Iterable[TransferItem]) -> None:
        """Copies of blocks are about to be enqueued."""
        for item in items:
            self.books.moved(item.kind, item.slot_src, item.slot_dst, item.tokens)

    @guarded
    def admitted(self, request: int, slots: Sequence[int], reused: int, part_is_copied: bool = False) -> None:
        """`part_is_copied`: a block inside which they end is a copy of its own, of which nothing was said."""
        for each in self.books.admitted(request, slots, reused, part_is_copied):
            self._unfilled(*each)

    @guarded
    def replaced(self, request: int, place: int, slot: int) -> None:
        for each in self.books.replaced(request, place, slot):
            self._unfilled(*each)

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
        self.books.came_back(request, slots)

    @guarded
    def forget(self, slots: Iterable[int]) -> None:
        """Somebody may write to them unheard."""
        self.books.forget(slots)

    @guarded
    def hold(self, slots: Sequence[int], numbers: Sequence[int] = ()) -> None:
        """One more active request has these slots. Told where the caller hears of the blocks of active requests alone.
        `numbers`: those of the blocks, if they keep them when they move."""
        self.books.hold(slots, numbers)

    @guarded
    def let_go(self, slots: Sequence[int], numbers: Sequence[int] = ()) -> None:
        """One less has them. What none has is forgotten, or kept by its number."""
        self.books.let_go(slots, numbers)

    @guarded
    def loaded(self, request: int, begin: int, end: int) -> None:
        self.books.loaded(request, begin, end)

    @guarded
    def grown(self, request: int, slots: Sequence[int]) -> None:
        """A request has got further blocks, and no step that writes them has been enqueued yet."""
        self.books.grown(request, slots)

    @guarded
    def wrote(self, writes: Iterable[tuple[int, int, int]]) -> None:
        """Steps that `step` was told of have written these positions as well: of a request, from one to another. Its
        slots are known, and the positions are kept for certain."""
        self.books.went_on((*write, ()) for write in writes)

    @guarded
    def went_on(self, parts: Iterable[tuple[int, int, int, Sequence[int]]], holds: bool = False) -> None:
        """As `wrote`, and then each has got further blocks in these slots. `holds`: and holds them."""
        self.books.went_on(parts, holds)

    @guarded
    def step(self, writes: Sequence[Write], writers: Sequence[int] = ()) -> None:
        """A step has been enqueued that writes these positions. `writers`: requests of which it has written others.
        They are kept as they are."""
        self._report.steps = step = self._report.steps + 1
        all_writers = [*(write.request for write in writes), *writers] if writes else writers
        self._writers.append((step, all_writers))
        ring = self._ring
        arrived = ring.arrived()  # and leaves its places free
        changed, slots = self.books.step(step, arrived, writes, ring.free)
        for each in changed:
            self._changed(*each)
        if slots:
            ring.send(slots)

    @guarded
    def released(self, request: int) -> None:
        """Its blocks are looked at first, and alone: its slots may be given away at once, and of others that was not
        heard yet."""
        if slots := self.books.released(request, self._ring.free):
            self._ring.send(slots)

    @guarded
    def lost(self, request: int) -> None:
        """A request has ended unheard: its slots may be others' by now."""
        self.books.lost(request)

    @guarded
    def read(self) -> None:
        """Compare what has arrived. The loop's steps do the same."""
        for each in self.books.arrived(self._ring.arrived()):
            self._changed(*each)

    def report(self) -> CanaryReport:
        report = self._report
        report.blocks_compared = {occasion: count for occasion, count in self.books.compared.items() if count}
        report.blocks_taken, report.missed, report.counts = self.books.taken, self.books.missed, dict(self._counts)
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

    # ---- findings ----

    def _unfilled(self, slot: int, filler: int | None, reader: int) -> None:
        self._find("unfilled", "reused", slot, (), filler, reader, 0, self._report.steps)

    def _changed(
        self, slot: int, layers: list[int], occasion: str, filler: int | None, reader: int | None, right_at: int,
        wrong_at: int,
    ) -> None:  # fmt: skip
        seen = cast("Occasion", "live" if occasion == "filled" else occasion)
        differing = tuple(self._layers[each] for each in layers)
        self._find("changed", seen, slot, differing, filler, reader, right_at, wrong_at)

    def _find(
        self, kind: Kind, occasion: Occasion, slot: int, layers: tuple[int, ...], filler: int | None,
        reader: int | None, right_at: int, wrong_at: int,
    ) -> None:  # fmt: skip
        is_dated = kind == "changed"
        between = [
            request for at, requests in self._writers if is_dated and right_at < at <= wrong_at for request in requests
        ]
        fitting = tuple(hazard for hazard in FITTING[kind, occasion] if hazard in self._hazards)
        finding = Finding(
            kind, occasion, slot, layers, number_of(filler), number_of(reader), right_at, wrong_at,
            tuple(dict.fromkeys(between))[:WRITERS_MAX], self._fixes_off, fitting,
        )  # fmt: skip
        self._counts[kind] += 1
        flight.note(flight.CANARY_SPOKE, slot, finding.filler, finding.reader, wrong_at, text=f"{kind}, {occasion}")
        if len(self._report.findings) < FINDINGS_MAX:
            self._report.findings.append(finding)
        if (kind, occasion) not in self._said:
            self._said.add((kind, occasion))
            self._say("canary: %s. Others of this kind are counted, not logged", sentence(finding))


def ring_of(device: Device, stream: int, pools: Sequence[Pool], places: int, key: int) -> DigestRing:
    if not device.has_kernels:
        raise DeviceError(f"{device.name} has no kernels: they are built where nvcc is found")
    return device.digest_ring(stream, [pool.digested for pool in pools], places, key)


def number_of(request: int | None) -> int:
    return NOBODY if request is None else request


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
