"""The transfers of one rank, between the device and its host pool, and where a block lies in both.

Jobs are known by their numbers.

Each direction has a lane, by DMA or by the copy kernel, whichever was faster when the host pool was made.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, DeviceError, HostPool, Mark, Marks, TransferLane
from trtllm_kvfix.offload.ledger import Ended, Ledger, LoadJob, Record, StoreJob
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.sizes import bytes_text

# Where a block lies: on the device, in one pool or in several, and in its slot of the host pool.
#
# Upstream describes a cache of several pools by ranges of bytes that repeat for each block, by layer group. Groups
# differ in their attention window. With a sliding window, upstream gives blocks away while their request lives, and
# reports only added blocks to connectors. A store could then read the blocks of another request, so such a cache is
# refused.

Addresses = NDArray[np.uint64]


class LayoutMismatch(KvfixError):
    """The blocks of the device are not those that the host tier was built for."""


class DevicePool(NamedTuple):
    """Blocks of one size at equal distances."""

    address: int
    blocks: int
    block_bytes: int
    kind: str  # the parts of a block, for comparison and messages
    stride: int  # from one block to the next
    group: int = 0  # the layer group that the numbers of blocks belong to


class BlockLayout:
    """A slot of the host pool begins with the parts of one block from all pools, one pool behind the other."""

    def __init__(self, pools: Sequence[DevicePool]) -> None:
        for pool in pools:
            if pool.stride < pool.block_bytes or pool.blocks < 1:
                raise LayoutMismatch(f"a pool of {pool.blocks} blocks of {pool.block_bytes} bytes, {pool.stride} apart")
        if not pools:
            raise LayoutMismatch("there is no pool; the connector was registered before the cache had one")
        self.pools = tuple(pools)
        self.block_bytes = sum(pool.block_bytes for pool in pools)

    @property
    def kind(self) -> tuple[str, ...]:
        """Equal for two layouts whose blocks mean the same."""
        return tuple(f"{pool.blocks} blocks of {pool.block_bytes} bytes, {pool.kind}" for pool in self.pools)

    def device_addresses(self, blocks: Sequence[int], count: int) -> Addresses:
        """The ranges of `count` blocks, by their numbers in the first layer group, then in the next, and so on."""
        groups = np.asarray(blocks, np.int64).reshape(-1, count)
        return np.concatenate([self._addresses(pool, groups) for pool in self.pools])

    def _addresses(self, pool: DevicePool, groups: NDArray[np.int64]) -> Addresses:
        if pool.group >= len(groups):
            raise LayoutMismatch(f"blocks of {len(groups)} layer groups, but {pool.kind} belong to group {pool.group}")
        numbers = checked(groups[pool.group], pool.blocks, "block of the device")
        return np.uint64(pool.address) + numbers * np.uint64(pool.stride)

    def host_addresses(self, slots: Sequence[int], pool: HostPool) -> Addresses:
        numbers = checked(slots, pool.slots, "slot of the host pool")
        starts = np.uint64(pool.address) + numbers * np.uint64(pool.slot_bytes)
        offsets = np.cumsum([0, *(pool.block_bytes for pool in self.pools[:-1])], dtype=np.uint64)
        return np.concatenate([starts + offset for offset in offsets])

    def sizes(self, blocks: int) -> Addresses:
        return np.repeat(np.array([pool.block_bytes for pool in self.pools], np.uint64), blocks)


def require_alike(layouts: Sequence[BlockLayout]) -> None:
    """Compare all ranks: a block number that one rank decides on must mean the same on each."""
    for rank, layout in enumerate(layouts):
        if layout.kind != layouts[0].kind:
            raise LayoutMismatch(
                f"rank {rank} differs from rank 0: {'; '.join(layout.kind)}, not {'; '.join(layouts[0].kind)}"
            )


def checked(numbers: Sequence[int] | NDArray[np.int64], limit: int, what: str) -> Addresses:
    """Refuse a number out of range: the device would read or write stray memory."""
    array = np.asarray(numbers, np.int64)
    if len(array) and not 0 <= array.min() <= array.max() < limit:
        raise LayoutMismatch(
            f"{what} {array.min()} to {array.max()}: there are {limit}; the pool changed after it was registered"
        )
    return array.astype(np.uint64)


def pool_of(tensor: Any) -> DevicePool:
    """The layout of upstream's primary pool, a torch tensor (blocks, layers, kv, ...), or of a native DeviceArray."""
    shape = tuple(int(size) for size in tensor.shape)
    if hasattr(tensor, "data_ptr"):
        if not tensor.is_contiguous():
            raise LayoutMismatch(f"the pool of shape {shape} is not contiguous; its blocks cannot be copied whole")
        address, total = int(tensor.data_ptr()), int(tensor.numel()) * int(tensor.element_size())
    else:
        address, total = int(tensor.address), int(tensor.nbytes)
    if not shape or shape[0] < 1 or total % shape[0]:
        raise LayoutMismatch(f"a pool of shape {shape} and {total} bytes has no whole blocks")
    block_bytes = total // shape[0]
    return DevicePool(address, shape[0], block_bytes, f"{list(shape[1:])} {tensor.dtype}", block_bytes)


WINDOWS = ("window_size", "sliding_window_size")  # as releases name it
SEQUENCES = (list, tuple)  # their union would be made anew for each block that a request fills
ByGroup: TypeAlias = Sequence[Any] | Mapping[Any, Any]  # at the number of a group, or under it


def layout_of(description: Any, tokens_per_block: int, tokens_max: int | None) -> BlockLayout:
    """Read upstream's description. A request has up to `tokens_max` tokens; if None, every window slides."""
    if description.tokens_per_block != tokens_per_block:
        raise LayoutMismatch(
            f"the cache has blocks of {description.tokens_per_block} tokens, the configuration says {tokens_per_block}"
        )
    groups = in_order(description.groups)
    for group in groups:
        for name in WINDOWS:
            require_full_attention(f"layer group {group.layer_group_id}", getattr(group, name, None), tokens_max)
    return BlockLayout([pool for group in groups for pool in pools_of(group)])


def in_order(by_group: ByGroup) -> list[Any]:
    """The entries of all groups that exist, in the order of their numbers."""
    return [by_group[key] for key in sorted(by_group, key=int)] if isinstance(by_group, Mapping) else list(by_group)


def blocks_by_group(by_group: ByGroup) -> list[list[int]]:
    """The blocks of each group, at its number. A group that does not exist has none."""
    if not isinstance(by_group, Mapping):
        return [flat(blocks) for blocks in by_group]
    numbered = {int(group): flat(blocks) for group, blocks in by_group.items()}
    return [numbered.get(group, []) for group in range(max(numbered, default=-1) + 1)]


def flat(block_ids: Sequence[Any]) -> list[int]:
    """Block ids are a list, or one list for each beam; this connector keeps requests of one beam."""
    if block_ids and isinstance(block_ids[0], SEQUENCES):
        return [int(block) for block in chain.from_iterable(block_ids)]
    return [int(block) for block in block_ids]


def require_no_sliding(manager: Any) -> None:
    """Check the cache manager itself. The description of a cache, which comes first, may leave windows out."""
    tokens_max = getattr(manager, "max_seq_len", None)
    layers = getattr(getattr(manager, "kv_cache_manager_py_config", None), "layers", None) or ()
    windows = [getattr(layer, name, None) for layer in layers for name in WINDOWS]
    for window in (*windows, *(getattr(manager, "max_attention_window_vec", None) or ())):
        require_full_attention("a layer of this model", window, tokens_max)


def require_full_attention(what: str, window: int | None, tokens_max: int | None) -> None:
    if window is not None and (tokens_max is None or window < tokens_max):
        raise LayoutMismatch(
            f"{what} has a window of {window} tokens, and requests have up to {tokens_max or 'any number'}: blocks "
            "that leave a window are given away, so prefixes cannot be kept whole. Set max_seq_len to the window or "
            "below, or serve this model without the offload connector"
        )


def pools_of(group: Any) -> Iterator[DevicePool]:
    for region in (*group.regions, *getattr(group, "replicated_regions", ())):
        layers = sorted({buffer.layer_id for buffer in region.buffers})
        roles = "/".join(sorted({buffer.role for buffer in region.buffers}))
        kind = f"{roles} of {len(layers)} layers from {layers[0]} to {layers[-1]} in layer group {group.layer_group_id}"
        yield DevicePool(
            int(region.base), int(region.num_slots), int(region.size), kind, int(region.stride),
            int(group.layer_group_id),
        )  # fmt: skip


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
        self._key = secrets.randbits(64)
        self._every = {"off": 0, "sample": SAMPLE, "all": 1}[verify]
        self._of_slot: dict[int, int] = {}

    def note(self, slots: Sequence[int]) -> None:
        """Take the digests of slots that have just been filled."""
        chosen = self._chosen(slots)
        self._of_slot.update(zip(chosen, self._pool.digests(chosen, self._key), strict=True))

    def differing(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Return those of the slots just read whose contents have changed since they were filled."""
        known = [slot for slot in self._chosen(slots) if slot in self._of_slot]
        found = self._pool.digests(known, self._key)
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
        errors = [job.error for job in ended if job.error and not job.no_room]
        if errors:
            self._report.failed(errors)
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
