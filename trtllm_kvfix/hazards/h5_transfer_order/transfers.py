"""H5: blocks are stored and loaded on a copy stream, which must not run ahead of the stream that computes."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Comparison, Lane
from trtllm_kvfix.native import CopyEngine, Device, DeviceArray, PinnedArray

BLOCKS, BLOCK_WORDS = SHAPE = (8, 1024)
BLOCK_BYTES = BLOCK_WORDS * 4
BYTES = np.full(BLOCKS, BLOCK_BYTES, np.uint64)


def addresses(blocks: DeviceArray | PinnedArray) -> NDArray[np.uint64]:
    return np.uint64(blocks.address) + np.arange(BLOCKS, dtype=np.uint64) * np.uint64(BLOCK_BYTES)


class Mover(Protocol):
    """One way of copying blocks on the copy stream."""

    ordered: bool

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None: ...
    def close(self) -> None: ...


class Unordered:
    """Upstream: when the scheduler counts a block as computed, that is bookkeeping, and no edge between two streams."""

    ordered = False

    def __init__(self, device: Device, compute: int, copy: int, *, order: str) -> None:  # noqa: ARG002  that is the bug
        self.device, self.copy, self.order = device, copy, order

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None:
        self.device.copy_batch(dst, src, BYTES, self.order, self.copy)

    def close(self) -> None:
        """Nothing is owned here."""


class Ordered:
    """The fix: the copy waits for the work that compute has got so far, and the work that compute gets next waits for
    the copy."""

    ordered = True

    def __init__(self, device: Device, compute: int, copy: int, *, order: str) -> None:
        self.device, self.compute, self.copy, self.order = device, compute, copy, order
        self.engine = CopyEngine(device)
        self.computed = device.create_event()

    def move(self, dst: NDArray[np.uint64], src: NDArray[np.uint64]) -> None:
        self.device.record(self.computed, self.compute)
        self.engine.submit(
            dst, src, BYTES, after=self.computed, before=self.compute, stream=self.copy, order=self.order
        )

    def close(self) -> None:
        self.device.destroy_event(self.computed)


class TwoStreams(Arm):
    """Blocks on the device and on the host, a stream behind the gate, and one that is free to run ahead of it.

    The free stream waits for the held one only if it is ordered. Without an edge, the arm waits for it while the gate
    is closed, so it has certainly run ahead. With an edge, the arm issues an unordered copy of the same size later and
    waits for that: work that is still not done then is held by its edge, and not merely slow.
    """

    holds_copy: ClassVar[bool] = False  # which of the two streams is behind the gate
    held_work: ClassVar[str]
    free_work: ClassVar[str]
    ordered: bool

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.free, self.bystander = device.create_stream(), device.create_stream()
        self.held_done = device.create_event()
        self.blocks, self.seen, self.aside = (device.empty(SHAPE, "uint32") for _ in range(3))
        self.host, self.unrelated = (device.pinned(SHAPE, "uint32") for _ in range(2))

    def lanes(self) -> tuple[Lane, ...]:
        held, free = ("copy", "compute") if self.holds_copy else ("compute", "copy")
        return Lane(f"{held} stream", self.held_work), Lane(f"{free} stream", self.free_work, not self.ordered)

    def draw(self) -> NDArray[np.uint32]:
        return self.random.integers(1, 1 << 32, SHAPE, np.uint32)

    def disturb(self) -> None:
        if self.ordered:
            self.device.copy_batch(addresses(self.aside), addresses(self.unrelated), BYTES, "stream", self.bystander)
            self.device.synchronize(self.bystander)
        else:
            self.wait_free()

    def held_work_ends(self) -> None:
        """Call this behind the work of the held stream, before that stream is made to wait for the other."""
        self.device.record(self.held_done, self.held)

    def wait_held(self) -> None:
        self.device.wait(self.held_done)

    def settle(self) -> None:
        for stream in (self.held, self.free, self.bystander):
            self.device.synchronize(stream)

    def close(self) -> None:
        self.device.destroy_event(self.held_done)
        for stream in (self.free, self.bystander):
            self.device.destroy_stream(stream)
        super().close()


class TransferArm(TwoStreams):
    def __init__(self, device: Device, seed: int, build_mover: Callable[[Device, int, int], Mover]) -> None:
        super().__init__(device, seed)
        self.compute, self.copy = (self.free, self.held) if self.holds_copy else (self.held, self.free)
        self.mover = build_mover(device, self.compute, self.copy)
        self.ordered = self.mover.ordered
        self.followed = device.create_event()

    def follow(self) -> None:
        """Enqueue what uses the blocks after the call."""

    def disturb(self) -> None:
        self.follow()
        self.device.record(self.followed, self.free)
        super().disturb()

    def waiting(self) -> bool:
        return not self.ordered or not self.device.done(self.followed)

    def wait_free(self) -> None:
        self.device.wait(self.followed)

    def read_blocks(self) -> None:
        """Read the blocks as attention does, as far as order goes."""
        self.device.copy(self.seen.address, self.blocks.address, self.blocks.nbytes, self.compute)

    def close(self) -> None:
        self.mover.close()
        self.device.destroy_event(self.followed)
        super().close()


class StoreArm(TransferArm):
    def prepare(self) -> None:
        self.before, self.value = self.draw(), int(self.random.integers(1, 1 << 32))
        self.host.array[:] = 0
        self.device.upload(self.blocks, self.before, self.held)

    def call(self) -> None:
        self.mover.move(addresses(self.host), addresses(self.blocks))

    def write_blocks(self) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, self.value, self.compute)


class StoreBehindWriter(StoreArm):
    """A store is issued while the kernel that writes the blocks is queued."""

    held_work, free_work = "kernel writes the blocks", "store"

    def lead_in(self) -> None:
        self.write_blocks()
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(np.full(SHAPE, self.value, np.uint32), self.host.array.copy())


class StoreBeforeWriter(StoreArm):
    """Compute writes for the next owner of blocks whose store is queued."""

    holds_copy = True
    held_work, free_work = "store", "kernel writes the blocks"

    def follow(self) -> None:
        self.held_work_ends()
        self.write_blocks()

    def compare(self) -> Comparison:
        return Comparison(self.before, self.host.array.copy())


class LoadArm(TransferArm):
    def prepare(self) -> None:
        self.before, self.loaded = self.draw(), self.draw()
        self.host.array[:] = self.loaded
        for blocks in (self.blocks, self.seen):
            self.device.upload(blocks, self.before, self.held)

    def call(self) -> None:
        self.mover.move(addresses(self.blocks), addresses(self.host))


class LoadBehindReader(LoadArm):
    """A load is issued into blocks that compute still reads for their last owner."""

    held_work, free_work = "attention reads the blocks", "load"

    def prepare(self) -> None:
        super().prepare()
        self.device.upload(self.seen, np.zeros(SHAPE, np.uint32), self.held)

    def lead_in(self) -> None:
        self.read_blocks()
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(self.before, self.device.download(self.seen, self.held))


class LoadBehindZeroing(LoadArm):
    """A load is issued into blocks that compute is about to clear for their new owner."""

    held_work, free_work = "kernel clears the blocks", "load"

    def lead_in(self) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, 0, self.compute)
        self.held_work_ends()

    def compare(self) -> Comparison:
        return Comparison(self.loaded, self.device.download(self.blocks, self.held))


class LoadBeforeReader(LoadArm):
    """Compute reads blocks whose load is queued."""

    holds_copy = True
    held_work, free_work = "load", "attention reads the blocks"

    def follow(self) -> None:
        self.held_work_ends()
        self.read_blocks()

    def compare(self) -> Comparison:
        return Comparison(self.loaded, self.device.download(self.seen, self.held))
