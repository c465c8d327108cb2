"""Choose between DMA and the copy kernel: once for each direction, while the host pool is empty.

DMA engines take longer to begin a small block than to move it, and cost compute nothing. The kernel moves small blocks
as fast as large ones, but takes multiprocessors. Which one is faster depends on the machine and on how blocks are laid
out, so it is measured: with the lanes that will be used, between free slots of the pool and memory of its own.
"""

from statistics import median
from typing import NamedTuple

import numpy as np

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, DeviceError, HostPool
from trtllm_kvfix.offload.lanes import Direction, Way, make_lane
from trtllm_kvfix.offload.layout import Addresses, DevicePool, Layout
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.sizes import bytes_text

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


def choose_ways(device: Device, layout: Layout, pool: HostPool, settings: OffloadSettings) -> Ways:
    ways = _ways(device, layout, pool, settings)
    counters.offload_stores_by_kernel.put(ways.store == "kernel")
    counters.offload_loads_by_kernel.put(ways.load == "kernel")
    return ways


def _ways(device: Device, layout: Layout, pool: HostPool, settings: OffloadSettings) -> Ways:
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


def why_no_kernel(device: Device, layout: Layout, pool: HostPool) -> str:
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


def measure(device: Device, layout: Layout, pool: HostPool, settings: OffloadSettings) -> Speeds:
    """Takes tens of milliseconds. Writes slots of the pool and memory of its own."""
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


def layout_in(address: int, layout: Layout, count: int) -> Layout:
    """Pools of `count` blocks like these, one behind the other."""
    pools: list[DevicePool] = []
    for one in layout.pools:
        pools.append(one._replace(address=address, blocks=count, stride=one.block_bytes))
        address += count * one.block_bytes
    return Layout(pools)


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
