"""The transfers of one rank, between the device and its host pool. Jobs are known by their numbers.

Each direction has a lane, by DMA or by the copy kernel, whichever was faster when the host pool was made.
"""

from collections.abc import Collection, Iterable, Sequence
from statistics import median
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, DeviceError, HostPool, Mark, Marks, TransferLane
from trtllm_kvfix.offload.layout import Addresses, BlockLayout, DevicePool, LayoutMismatch
from trtllm_kvfix.offload.ledger import Ended, Ledger, LoadJob, Record, StoreJob
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.sizes import bytes_text

STREAMS_LOST_MAX = 256  # in a row; the scheduler side stops asking long before

Direction: TypeAlias = Literal["store", "load"]
Way: TypeAlias = Literal["dma", "kernel"]

# A store may not read its blocks before its turn: compute has been given them, but has not written them yet.
# Host blocks were complete before they could be found, so a load may read them at any time.
SOURCE_ORDER = {"store": "stream", "load": "any"}


def make_lane(device: Device, direction: Direction, way: Way, settings: OffloadSettings) -> TransferLane:
    return TransferLane(
        device, order=SOURCE_ORDER[direction], queue_max=settings.queue_max, in_flight_max=settings.in_flight_max,
        failures_max=STREAMS_LOST_MAX, kernel_sms=settings.copy_sms if way == "kernel" else 0,
    )  # fmt: skip


SAMPLE = 16  # one slot in so many


class Digests:
    """Digests of stored blocks, compared with what a load brought: they show stray writes to the host tier.

    A digest costs the executor's thread a pass over the block, so digests are off unless an operator looks for an
    error.
    """

    def __init__(self, pool: HostPool, verify: Literal["off", "sample", "all"]) -> None:
        self._pool = pool
        self._every = {"off": 0, "sample": SAMPLE, "all": 1}[verify]
        self._of_slot: dict[int, int] = {}

    def note(self, slots: Sequence[int]) -> None:
        """Take the digests of slots that have just been filled."""
        chosen = self._chosen(slots)
        self._of_slot.update(zip(chosen, self._pool.digests(chosen), strict=True))

    def differing(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Return those of the slots just read whose contents have changed since they were filled."""
        known = [slot for slot in self._chosen(slots) if slot in self._of_slot]
        found = self._pool.digests(known)
        return tuple(slot for slot, one in zip(known, found, strict=True) if one != self._of_slot[slot])

    def _chosen(self, slots: Sequence[int]) -> list[int]:
        return [slot for slot in slots if slot % self._every == 0] if self._every else []


FENCE_S_MAX = 30.0  # a transfer that is not over by then never will be


class StuckTransfer(KvfixError):
    """The device does not end a transfer, so its blocks cannot be given to any request."""


class Transfers:
    def __init__(
        self,
        device: Device,
        layout: BlockLayout,
        pool: HostPool,
        settings: OffloadSettings,
        report: TierReport,
        ledger: Ledger,
    ) -> None:
        self._layout = layout
        self._pool = pool
        self._settings = settings
        self._report = report
        self._ledger = ledger
        # Transfers that wait in a queue hold a mark, and so does the step that is being submitted.
        self._marks = Marks(device, marks_max=2 * settings.queue_max + 4)
        ways = choose_ways(device, layout, pool, settings)  # while nothing is in the pool
        self._stores = make_lane(device, "store", ways.store, settings)
        self._loads = make_lane(device, "load", ways.load, settings)
        self._digests = Digests(pool, settings.verify)

    def mark(self, stream: int) -> Mark:
        return self._marks.set(stream)

    def note_filled(self, slots: Sequence[int]) -> None:
        """Note that these slots have been filled by somebody else than a store: what they held before is gone."""
        self._digests.note(slots)

    def running(self) -> list[Record]:
        """The jobs that a lane has."""
        return [record for record in self._ledger.begun() if record.lane is not None]

    def begin(self, loads: Sequence[LoadJob], stores: Sequence[StoreJob], stream: int) -> None:
        """Submit jobs behind all work that the computing stream has been given. Their fences are over."""
        if not loads and not stores:
            return
        now = monotonic()
        for number in [job.number for job in loads] + [job.number for job in stores]:
            self._ledger.begin(number, now)
        try:
            mark = self.mark(stream)
        except DeviceError as error:
            self.refuse([*loads, *stores], str(error))
            return
        for load in loads:
            self._enqueue(load, "load", self._loads, mark)
        for store in stores:
            self._enqueue(store, "store", self._stores, mark)

    def refuse(self, jobs: Iterable[StoreJob | LoadJob], why: str, *, no_room: bool = False) -> None:
        """End jobs that have not begun."""
        for job in jobs:
            self._ledger.end_here(Ended(job.number, f"not begun: {why}", no_room=no_room))

    def wait_for(self, jobs: Collection[int]) -> None:
        """Wait for jobs whose blocks upstream has given away: nothing may write these before the jobs are over."""
        for record in filter(None, map(self._ledger.get, jobs)):
            if record.lane is not None:
                counters.offload_early_reuse_waits.add()
                self._wait(record, FENCE_S_MAX, "and other requests own its blocks")

    def end_what_runs(self) -> None:
        """Wait until the device has ended what the lanes have, and what they are given meanwhile. The executor's thread
        may stand still, so what has ended stays with its lane: it is over when nothing new comes."""
        waited: set[int] = set()
        while new := [record for record in self.running() if record.number not in waited]:
            for record in new:
                self._wait(record, FENCE_S_MAX, "and the weights are about to change")
                waited.add(record.number)

    def take_ended(self) -> list[Ended]:
        for direction, lane in (("store", self._stores), ("load", self._loads)):
            for one in lane.take_ended():
                if not one.error:
                    BYTES[direction].add(one.bytes)
                    SECONDS[direction].add(one.seconds)
                self._ledger.end_here(Ended(one.job, one.error) if one.error else self._checked(one.job))
        self._refuse_stuck()
        ended = self._ledger.take_ended_here()
        self._report.failed([job.error for job in ended if job.error and not job.no_room])
        self._show()
        return ended

    def close(self, until: float | None = None) -> bool:
        """End everything by this time of `monotonic`, or within the time of the settings.

        False: the device kept a transfer, and with it the pool.
        """
        until = monotonic() + self._settings.shutdown_timeout_s if until is None else until
        lanes = [lane.close(max(until - monotonic(), 0.001)) for lane in (self._stores, self._loads)]
        if not all(lanes):
            self._pool.abandon()
            return False
        self._pool.close()
        self._report.pinned(self._pool.bytes_pinned)
        return self._pool.bytes_pinned == 0

    def _refuse_stuck(self) -> None:
        """Raise for a job that takes too long: its request would wait for ever, or its blocks would stay taken.

        A process that has slept looks once more.
        """
        limit_s = self._settings.transfer_timeout_s
        late = monotonic() - limit_s
        for running in self._ledger.begun_before(late):
            self._wait(running, FENCE_S_MAX, f"which is more than kvfix.offload.transfer_timeout_s, {limit_s:g} s")

    def _wait(self, running: Record, seconds: float, why: str) -> None:
        job, lane = running.job, running.lane
        if lane is not None and not lane.wait(job.number, seconds):
            raise StuckTransfer(
                f"transfer of {len(job.slots)} blocks of request {job.request_id} is {running.state.value} after "
                f"{monotonic() - (running.since or 0):.0f} s, {why}; is the device hung?"
            )

    def _enqueue(self, job: StoreJob | LoadJob, direction: str, lane: TransferLane, mark: Mark) -> None:
        if not job.slots:  # upstream had no room for what it was promised
            self._ledger.end_here(Ended(job.number, ""))
            return
        try:
            device = self._layout.device_addresses(job.blocks, len(job.slots))
            host = self._layout.host_addresses(job.slots, self._pool)
        except LayoutMismatch as error:
            self.refuse([job], str(error))
            return
        dst, src = (host, device) if direction == "store" else (device, host)
        answer = lane.enqueue(job.number, dst, src, self._layout.sizes(len(job.slots)), after=mark)
        if answer == "taken":
            self._ledger[job.number].lane = lane
        elif answer == "full":
            self.refuse([job], f"{self._settings.queue_max} transfers wait already", no_room=True)
        elif answer == "broken":
            self.refuse([job], lane.stats().first_error)
        else:
            self.refuse([job], "the lane is closed")

    def _checked(self, number: int) -> Ended:
        job = self._ledger[number].job
        if isinstance(job, StoreJob):
            self._digests.note(job.slots)
            return Ended(job.number, "")
        bad = self._digests.differing(job.slots)
        error = f"host slots {list(bad)} do not hold what was stored there" if bad else ""
        return Ended(job.number, error, bad)

    def _show(self) -> None:
        stats: Sequence[tuple[int, int]] = [
            (s.queued, s.in_flight) for s in (self._stores.stats(), self._loads.stats())
        ]
        counters.offload_queued.put(sum(queued for queued, _ in stats))
        counters.offload_in_flight.put(sum(in_flight for _, in_flight in stats))


BYTES = {"store": counters.offload_stored_bytes, "load": counters.offload_loaded_bytes}
SECONDS = {"store": counters.offload_store_seconds, "load": counters.offload_load_seconds}


# Choose between DMA and the copy kernel: once for each direction, while the host pool is empty.
#
# DMA engines take longer to begin a small block than to move it, and cost compute nothing. The kernel moves small
# blocks as fast as large ones, but takes multiprocessors. Which one is faster depends on the machine and on how blocks
# are laid out, so it is measured: with the lanes that will be used, between free slots of the pool and memory of its
# own.
BYTES_MEASURED = 32 << 20
BLOCKS_MEASURED_MAX = 2048
ROUNDS = 3  # after one that warms up
KERNEL_AHEAD_MIN = 1.5  # while it copies, compute beside it is 5 to 10 % slower
COPY_S_MAX = 30.0
ALIGNMENT_BYTES = 16


class Ways(NamedTuple):
    store: Way
    load: Way


Speeds = dict[tuple[Direction, Way], float]  # bytes a second


def choose_ways(device: Device, layout: BlockLayout, pool: HostPool, settings: OffloadSettings) -> Ways:
    ways = _ways(device, layout, pool, settings)
    counters.offload_stores_by_kernel.put(ways.store == "kernel")
    counters.offload_loads_by_kernel.put(ways.load == "kernel")
    return ways


def _ways(device: Device, layout: BlockLayout, pool: HostPool, settings: OffloadSettings) -> Ways:
    if settings.copy_by == "dma":
        return Ways("dma", "dma")
    if settings.copy_sms > device.multiprocessors:
        raise SettingsError(
            f"kvfix.offload.copy_sms is {settings.copy_sms}; {device.name} has {device.multiprocessors} multiprocessors"
        )
    why_not = why_no_kernel(device, layout, pool)
    if settings.copy_by == "kernel":
        if why_not:
            raise SettingsError(f"kvfix.offload.copy_by is kernel, but {why_not}; write auto or dma")
        return Ways("kernel", "kernel")
    if why_not or device.simulated:
        log.info("blocks go by DMA: %s", why_not or "a simulated device has no speed to measure")
        return Ways("dma", "dma")
    try:
        speeds = measure(device, layout, pool, settings)
    except DeviceError as error:
        log.warning("blocks go by DMA, as the two ways could not be compared: %s", error)
        return Ways("dma", "dma")
    ways = faster(speeds)
    log.info(
        "blocks of %s: stores by %s (DMA %.1f GB/s, kernel %.1f), loads by %s (DMA %.1f, kernel %.1f)",
        bytes_text(layout.block_bytes), ways.store, speeds["store", "dma"] / 1e9, speeds["store", "kernel"] / 1e9,
        ways.load, speeds["load", "dma"] / 1e9, speeds["load", "kernel"] / 1e9,
    )  # fmt: skip
    return ways


def why_no_kernel(device: Device, layout: BlockLayout, pool: HostPool) -> str:
    """Return the reason why the copy kernel cannot move these blocks. Empty if it can."""
    if not device.has_kernels:
        return f"{device.name} has no kernels: they are built where nvcc is found"
    if not pool.at_same_address_on_device:
        return f"{device.name} does not see the host pool at its own address"
    for one in layout.pools:
        if (one.address | one.block_bytes | one.stride) % ALIGNMENT_BYTES:
            return (
                f"a pool has blocks of {one.block_bytes} bytes, {one.stride} apart from {one.address:#x}: the kernel "
                f"moves {ALIGNMENT_BYTES} bytes at a time"
            )
    return ""


def faster(speeds: Speeds) -> Ways:
    def way(direction: Direction) -> Way:
        ahead = speeds[direction, "kernel"] >= KERNEL_AHEAD_MIN * speeds[direction, "dma"]
        return "kernel" if ahead else "dma"

    return Ways(way("store"), way("load"))


def measure(device: Device, layout: BlockLayout, pool: HostPool, settings: OffloadSettings) -> Speeds:
    """Measure both ways. This takes tens of milliseconds, and writes slots of the pool and memory of its own."""
    count = min(max(BYTES_MEASURED // layout.block_bytes, 1), BLOCKS_MEASURED_MAX, pool.slots)
    memory = device.empty((count * layout.block_bytes,), "uint8")
    random = np.random.default_rng(0)
    slots = random.permutation(count).tolist()
    blocks = [number for _ in range(1 + max(one.group for one in layout.pools)) for number in random.permutation(count)]
    own = layout_in(memory.address, layout, count)
    gpu, host = own.device_addresses(blocks, count), layout.host_addresses(slots, pool)
    sizes = layout.sizes(count)
    speeds: Speeds = {}
    for way in WAYS:
        speeds["store", way] = _speed(device, "store", way, settings, (host, gpu, sizes))
        speeds["load", way] = _speed(device, "load", way, settings, (gpu, host, sizes))
    return speeds


WAYS: tuple[Way, ...] = ("dma", "kernel")


def layout_in(address: int, layout: BlockLayout, count: int) -> BlockLayout:
    """Pools of `count` blocks like these, one behind the other."""
    pools: list[DevicePool] = []
    for one in layout.pools:
        pools.append(one._replace(address=address, blocks=count, stride=one.block_bytes))
        address += count * one.block_bytes
    return BlockLayout(pools)


def _speed(
    device: Device,
    direction: Direction,
    way: Way,
    settings: OffloadSettings,
    spans: tuple[Addresses, Addresses, Addresses],
) -> float:
    lane = make_lane(device, direction, way, settings)
    speeds = []
    try:
        for turn in range(1 + ROUNDS):
            if lane.enqueue(turn, *spans) != "taken" or not lane.wait(turn, COPY_S_MAX):
                raise KvfixError(f"a {direction} by {way} is not over after {COPY_S_MAX:g} s; is the device hung?")
            (ended,) = lane.take_ended()
            if ended.error:
                raise DeviceError(f"a {direction} by {way} failed: {ended.error}")
            speeds.append(ended.bytes / ended.seconds)
    finally:
        lane.close(COPY_S_MAX)
    return median(speeds[1:])
