"""Ways to move the same scattered blocks between device and host: ours, plain calls, and what others do."""

import queue
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.native import Device, DeviceArray, HostPool, Marks, TransferLane
from trtllm_kvfix.offload.transfers import BlockLayout, DevicePool, choose_ways
from trtllm_kvfix.offload_section import OffloadSettings

TOTAL_BYTES = 512 << 20
BLOCKS_MAX = 2048  # of a transfer
CHOOSING_BYTES = 64 << 20
Addresses = NDArray[np.uint64]


class Transfer(NamedTuple):
    dst: Addresses
    src: Addresses
    sizes: Addresses


class Work(NamedTuple):
    """Scattered blocks of one size, both ways."""

    device: Device
    pool: HostPool
    blocks: DeviceArray
    block_bytes: int
    host: Addresses
    gpu: Addresses

    @property
    def bytes(self) -> int:
        return len(self.host) * self.block_bytes

    def transfers(self, direction: str) -> list[Transfer]:
        dst, src = (self.host, self.gpu) if direction == "store" else (self.gpu, self.host)
        cuts = range(0, len(dst), BLOCKS_MAX)
        parts = [(dst[at : at + BLOCKS_MAX], src[at : at + BLOCKS_MAX]) for at in cuts]
        return [Transfer(to, of, np.full(len(to), self.block_bytes, np.uint64)) for to, of in parts]

    def half(self, which: int) -> "Work":
        return self._replace(host=self.host[which::2].copy(), gpu=self.gpu[which::2].copy())


def make_work(device: Device, block_bytes: int) -> Work:
    count = TOTAL_BYTES // block_bytes
    pool = HostPool(device, host_bytes=count * block_bytes, block_bytes=block_bytes)
    blocks = device.empty((count, block_bytes // 4), "uint32")
    random = np.random.default_rng(1)
    steps = np.uint64(block_bytes)
    host = np.uint64(pool.address) + random.permutation(count).astype(np.uint64) * steps
    gpu = np.uint64(blocks.address) + random.permutation(count).astype(np.uint64) * steps
    return Work(device, pool, blocks, block_bytes, host, gpu)


class Loop:
    """One call for each block."""

    name = "copy_loop"

    def __init__(self, work: Work, direction: str) -> None:
        self.work, self.stream = work, work.device.create_stream()
        self.transfers = work.transfers(direction)

    def submit(self, transfer: Transfer) -> None:
        for dst, src in zip(map(int, transfer.dst), map(int, transfer.src), strict=True):
            self.work.device.copy(dst, src, self.work.block_bytes, self.stream)

    def wait(self) -> None:
        self.work.device.synchronize(self.stream)

    def close(self) -> None:
        self.work.device.destroy_stream(self.stream)


class Batch(Loop):
    """One call for each transfer, by the caller's thread, with no edge to anything."""

    name = "copy_batch"

    def __init__(self, work: Work, direction: str) -> None:
        super().__init__(work, direction)
        self.order = "stream" if direction == "store" else "any"

    def submit(self, transfer: Transfer) -> None:
        self.work.device.copy_batch(*transfer, self.order, self.stream)


class Background(Batch):
    """Copies as vLLM's simple offload connector does: a thread takes batches from a queue, makes its stream wait for an
    event of the stream that computes, copies in one call, and records an event. (Its stream has the lowest priority;
    this one has not.)"""

    name = "background_batch"

    def __init__(self, work: Work, direction: str) -> None:
        super().__init__(work, direction)
        self.computes = work.device.create_stream()
        self.queue: queue.SimpleQueue[tuple[Transfer, int] | None] = queue.SimpleQueue()
        self.copied: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.given = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def submit(self, transfer: Transfer) -> None:
        computed = self.work.device.create_event()
        self.work.device.record(computed, self.computes)
        self.queue.put((transfer, computed))
        self.given += 1

    def wait(self) -> None:
        for _ in range(self.given):
            event = self.copied.get()
            self.work.device.wait(event)
            self.work.device.destroy_event(event)
        self.given = 0

    def close(self) -> None:
        self.queue.put(None)
        self.thread.join()
        super().close()

    def _run(self) -> None:
        device = self.work.device
        while (item := self.queue.get()) is not None:
            transfer, event = item
            device.make_wait(self.stream, event)
            device.copy_batch(*transfer, self.order, self.stream)
            device.record(event, self.stream)
            self.copied.put(event)


class Whole(Loop):
    """All bytes in one copy: what the link gives."""

    name = "link"

    def __init__(self, work: Work, direction: str) -> None:
        super().__init__(work, direction)
        ends = np.uint64(work.pool.address), np.uint64(work.blocks.address)
        dst, src = ends if direction == "store" else ends[::-1]
        self.transfers = [Transfer(np.array([dst]), np.array([src]), np.array([work.bytes]))]

    def submit(self, transfer: Transfer) -> None:
        self.work.device.copy(int(transfer.dst[0]), int(transfer.src[0]), self.work.bytes, self.stream)


class Lanes:
    """The connector's way: a mark in the stream that computes, and a thread that submits."""

    name = "kvfix_lane"
    marked = True
    kernel_sms = 0
    streams = 4

    def __init__(self, work: Work, direction: str) -> None:
        self.work, self.transfers = work, work.transfers(direction)
        self.lane = TransferLane(
            work.device, order="stream" if direction == "store" else "any", streams=self.streams,
            kernel_sms=self.kernel_sms,
        )  # fmt: skip
        self.marks = Marks(work.device, marks_max=256)
        self.computes = work.device.create_stream()
        self.number = 0

    def submit(self, transfer: Transfer) -> None:
        mark = self.marks.set(self.computes) if self.marked else None
        self.number += 1
        answer = self.lane.enqueue(self.number, *transfer, after=mark)
        if answer != "taken":
            raise SystemExit(f"the lane is {answer}: {self.lane.stats().first_error}")

    def wait(self) -> None:
        self.lane.wait(self.number, 60)
        for ended in self.lane.take_ended():
            if ended.error:
                raise SystemExit(ended.error)

    def close(self) -> None:
        self.lane.close(10)
        self.work.device.destroy_stream(self.computes)


class UnmarkedLanes(Lanes):
    """The difference to this is the cost of the mark."""

    name = "kvfix_lane_no_mark"
    marked = False


class OneStreamLanes(Lanes):
    name = "kvfix_lane_1_stream"
    streams = 1


class OneSmLanes(Lanes):
    name = "kvfix_kernel_1_sm"
    kernel_sms = 1


class TwoSmLanes(Lanes):
    name = "kvfix_kernel_2_sms"
    kernel_sms = 2


class FourSmLanes(Lanes):
    name = "kvfix_kernel_4_sms"
    kernel_sms = 4


class ChosenLanes(Lanes):
    """Lanes by DMA or by kernel, as the connector chooses at its start."""

    name = "kvfix_auto"

    def __init__(self, work: Work, direction: str) -> None:
        size = work.block_bytes
        layout = BlockLayout([DevicePool(work.blocks.address, len(work.gpu), size, "words", size)])
        settings = OffloadSettings(host_bytes=CHOOSING_BYTES)
        empty = HostPool(work.device, host_bytes=CHOOSING_BYTES, block_bytes=size)
        ways = choose_ways(work.device, layout, empty, settings)
        self.kernel_sms = settings.copy_sms if getattr(ways, direction) == "kernel" else 0
        super().__init__(work, direction)


WAYS: tuple[Any, ...] = (
    Whole, Loop, Batch, Background, OneStreamLanes, UnmarkedLanes, OneSmLanes, TwoSmLanes, FourSmLanes, Lanes,
    ChosenLanes,
)  # fmt: skip
BESIDE_MATMUL: tuple[Any, ...] = (Batch, Background, Lanes, OneSmLanes, TwoSmLanes, FourSmLanes)
