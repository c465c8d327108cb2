"""H2: the V2 manager ships with a kernel that reads pinned host memory when it runs; what it reads is reused early."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from trtllm_kvfix.hazards.case import ControlKind, Lane
from trtllm_kvfix.hazards.h1_block_offsets_v1.device import (
    BLOCKS,
    PAGES,
    POOLS,
    ROWS,
    ROWS_MAX,
    SHAPE,
    OffsetArm,
    Rows,
    Shipper,
    Table,
    cases,
)
from trtllm_kvfix.hazards.simulated import DeviceTensor, HostTensor, trial
from trtllm_kvfix.native import Device, DeviceArray, PinnedArray
from trtllm_kvfix.staging import on_stream
from trtllm_kvfix.staging.read_back import BAD_PAGE


class CachingHostAllocator:
    """Blocks are never given back to the system, so that their addresses stay mapped whatever is pending.

    torch's allocator waits for the work that its own copies record. A kernel that takes a raw pointer records nothing,
    and a block that it still reads looks free.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[PinnedArray] = []

    def take(self, shape: tuple[int, ...]) -> PinnedArray:
        for block in self._free:
            if tuple(block.shape) == shape:
                self._free.remove(block)
                return block
        return self._device.pinned(shape, "int32")

    def give_back(self, block: PinnedArray) -> None:
        """The last reference to a tensor goes."""
        self._free.append(block)


SCALE = [2, 6]  # per pool: K = page * scale, V = K + offset
V_OFFSET = [1, 3]


def kernel_output(pages: Table) -> Table:
    """Output of the gather kernel for the K plane (pools, rows, blocks) of some rows."""
    keys = pages * np.array(SCALE, np.int32)[:, None, None]
    both = np.stack([keys, keys + np.array(V_OFFSET, np.int32)[:, None, None]], axis=2)
    return np.where((pages == BAD_PAGE)[:, :, None, :], 0, both).astype(np.int32)


class PageTable(OffsetArm):
    """Every live request owns a row of the table, which the cache writes; a batch is a list of rows."""

    lanes = (Lane("stream", "gather kernel"),)

    def prepare(self) -> None:
        self.table.array[:, :, 0] = self.pages(ROWS_MAX)
        order = self.random.permutation(ROWS_MAX)
        self.batches = order[:ROWS].tolist(), order[ROWS : 2 * ROWS].tolist()

    def pages(self, rows: int) -> Table:
        """Contents for some rows: each uses a part of its blocks."""
        pages = self.random.integers(1, PAGES, (POOLS, rows, BLOCKS), np.int32)
        used = self.random.integers(BLOCKS // 2, BLOCKS, (rows, 1))
        return np.where(np.arange(BLOCKS) < used, pages, BAD_PAGE).astype(np.int32)

    def copy_batch_block_offsets(self, which: int) -> None:
        self.ship(self.batches[which], which)

    def reference(self, which: int) -> None:
        """Take down what this batch must get, before the table changes."""
        self.expected[which, :, :ROWS] = kernel_output(self.table.array[:, self.batches[which], 0])


class NextCall(PageTable):
    """The next iteration ships other requests. Both batches stay alive: no row of the table changes."""

    def prepare(self) -> None:
        super().prepare()
        self.reference(0)
        self.reference(1)


class FreedRow(PageTable):
    """A request of the batch ends; its row goes to a new request, and the cache writes that one's pages there."""

    def prepare(self) -> None:
        super().prepare()
        self.reference(0)

    def disturb(self) -> None:
        self.table.array[:, self.batches[0][0], 0] = self.pages(1)[:, 0]


class Gather(Shipper):
    """Launches upstream's kernel, which reads both the table and the copy index when it runs."""

    def gather(self, table: PinnedArray, copy_index: PinnedArray, destination: DeviceArray, stream: int) -> None:
        self.device.gather_host_rows(destination, table, copy_index, ROWS, BLOCKS, SCALE, V_OFFSET, stream)


class LiveGather(Gather):
    """Upstream: the kernel reads the live table, and a copy index that every call writes into the same buffer."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.copy_index = device.pinned((ROWS,), "int32")

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        self.copy_index.array[:] = rows
        self.gather(table, self.copy_index, destination, stream)


Launch: TypeAlias = Callable[..., None]


class ProtectedLaunch(Gather):
    """The same launch with a fix around it. `LiveGather` is what it does alone, without Python around it."""

    def __init__(self, around: Callable[[Launch], Launch], device: Device) -> None:
        super().__init__(device)
        self._launch = around(self.kernel)
        self._tables: dict[int, HostTensor] = {}  # by address
        self.copy_index, self.scales, self.offsets = (
            self.pinned(contents) for contents in ([0] * ROWS, SCALE, V_OFFSET)
        )

    def pinned(self, contents: Sequence[int]) -> HostTensor:
        memory = self.device.pinned((len(contents),), "int32")
        memory.array[:] = contents
        return HostTensor(self.device, memory, memory.array)

    def kernel(self, table: Any, output: Any, order: Any, scales: Any, offsets: Any, stream: int) -> None:
        factors = scales.tolist(), offsets.tolist()
        self.device.gather_host_rows(output.memory, table.memory, order.memory, ROWS, BLOCKS, *factors, stream)

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        live = self._tables.setdefault(table.address, HostTensor(self.device, table, table.array))
        self.copy_index.numpy()[:] = rows
        with on_stream(self.device, stream):
            self._launch(live, DeviceTensor(destination), self.copy_index, self.scales, self.offsets, stream)


def self_test(around: Callable[[Launch], Launch]) -> None:
    """Twice each: the first time that a fix sees a table, it may do other things than from then on."""
    for scenario in (NextCall, FreedRow):
        trial(lambda device, kind=scenario: kind(device, 0, ProtectedLaunch(around, device)), times=2)  # type: ignore[misc]


class DroppedSnapshot(Gather):
    """The obvious repair: fresh pinned buffers for every call, dropped when it returns, as Python does."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.allocator = CachingHostAllocator(device)

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        snapshot, copy_index = self.allocator.take(SHAPE), self.allocator.take((ROWS,))
        snapshot.array[:, :ROWS] = table.array[:, rows]
        copy_index.array[:] = range(ROWS)
        self.gather(snapshot, copy_index, destination, stream)
        self.allocator.give_back(snapshot)
        self.allocator.give_back(copy_index)


v2 = partial(cases, "H2", layout="v2", index_scales=SCALE, kv_offset=V_OFFSET)
CASES = (
    *v2(
        "offsets-v2-index",
        NextCall,
        LiveGather,
        title="V2 block offsets: the shared copy index is overwritten while the kernel is queued",
        call="the copy index of batch A is written and the gather is enqueued",
        how="As upstream: the kernel reads the pinned table and the pinned copy index when it runs.",
        meanwhile="the next call asks for the copy index of batch B",
        effect="the kernel of batch A runs and gathers the rows of batch B",
    ),
    *v2(
        "offsets-v2-rebound",
        FreedRow,
        LiveGather,
        title="V2 block offsets: a freed row is bound to another request while the kernel is queued",
        call="batch A is shipped; nothing else is shipped after it",
        how="As upstream: the kernel reads the live table. No call follows, so the copy index stays as it is.",
        meanwhile="a request of batch A has ended; its row is bound to another request",
        effect="the kernel runs and gathers the pages of a request that is not in the batch",
    ),
    *v2(
        "offsets-v2-dropped",
        NextCall,
        DroppedSnapshot,
        title="V2 block offsets: fresh pinned buffers that are dropped come back with the next call",
        call="batch A is copied to fresh pinned buffers, the gather is enqueued, the buffers are dropped",
        how="The obvious repair: fresh buffers from a caching allocator, which learns of no event behind a kernel.",
        meanwhile="the next call takes buffers for batch B, and fills them",
        effect="the kernel of batch A runs and finds batch B in its buffers",
        kind=ControlKind.REPAIR,
    ),
)
