"""H2: the V2 manager ships with a kernel that reads pinned host memory when it runs; what it reads is reused early."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from trtllm_kvfix.hazards.case import Case, ControlKind, Side
from trtllm_kvfix.hazards.offsets import (
    BAD_PAGE,
    BLOCKS,
    MODES,
    PAGES,
    POOLS,
    ROWS,
    ROWS_MAX,
    SHAPE,
    BuildShipper,
    OffsetArm,
    Rows,
    Staged,
    Table,
)
from trtllm_kvfix.hazards.simulated import DeviceTensor, HostTensor, trial
from trtllm_kvfix.native import Device, DeviceArray, PinnedArray
from trtllm_kvfix.staging import on_stream


class _Returned(NamedTuple):
    block: PinnedArray
    events: tuple[int, ...]  # of work that still reads the block


class CachingHostAllocator:
    """Blocks are never given back to the system, so that their addresses stay mapped whatever is pending.

    As in torch, the allocator knows only about recorded work. Copies of the framework record themselves; a kernel that
    takes a raw pointer does not, and a block that it still reads looks free.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._in_use: dict[int, list[int]] = {}  # events by address, of blocks in use
        self._returned: list[_Returned] = []

    def take(self, shape: tuple[int, ...], dtype: str) -> PinnedArray:
        block = self._reusable(shape, dtype) or self._device.pinned(shape, dtype)
        self._in_use[block.address] = []
        return block

    def record(self, block: PinnedArray, stream: int) -> None:
        """The block is read by what has been enqueued on the stream so far."""
        event = self._device.create_event()
        self._device.record(event, stream)
        self._in_use[block.address].append(event)

    def give_back(self, block: PinnedArray) -> None:
        """The last reference to a tensor goes."""
        self._returned.append(_Returned(block, tuple(self._in_use.pop(block.address))))

    def close(self) -> None:
        """Every stream has settled."""
        for returned in self._returned:
            self._destroy(returned.events)
        self._returned.clear()

    def _reusable(self, shape: tuple[int, ...], dtype: str) -> PinnedArray | None:
        for at, (block, events) in enumerate(self._returned):
            if (tuple(block.shape), block.dtype) == (shape, dtype) and all(map(self._device.done, events)):
                self._destroy(events)
                del self._returned[at]
                return block
        return None

    def _destroy(self, events: tuple[int, ...]) -> None:
        for event in events:
            self._device.destroy_event(event)


SCALE = [2, 6]  # per pool: K = page * scale, V = K + offset
V_OFFSET = [1, 3]


def kernel_output(pages: Table) -> Table:
    """Output of the gather kernel for the K plane (pools, rows, blocks) of some rows."""
    keys = pages * np.array(SCALE, np.int32)[:, None, None]
    both = np.stack([keys, keys + np.array(V_OFFSET, np.int32)[:, None, None]], axis=2)
    return np.where((pages == BAD_PAGE)[:, :, None, :], 0, both).astype(np.int32)


class PageTable(OffsetArm):
    """Every live request owns a row of the table, which the cache writes; a batch is a list of rows."""

    work = "gather kernel"

    def prepare(self) -> None:
        self.table.array[:, :, 0] = self.pages(ROWS_MAX)
        order = self.random.permutation(ROWS_MAX)
        self.batches = order[:ROWS].tolist(), order[ROWS : 2 * ROWS].tolist()

    def pages(self, rows: int) -> Table:
        """Contents for some rows: each uses a part of its blocks."""
        pages = self.random.integers(1, PAGES, (POOLS, rows, BLOCKS), np.int32)
        used = self.random.integers(BLOCKS // 2, BLOCKS, (rows, 1))
        return np.where(np.arange(BLOCKS) < used, pages, BAD_PAGE).astype(np.int32)

    def call(self) -> None:
        self.copy_batch_block_offsets(0)

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

    def disturb(self) -> None:
        self.copy_batch_block_offsets(1)


class FreedRow(PageTable):
    """A request of the batch ends; its row goes to a new request, and the cache writes that one's pages there."""

    def prepare(self) -> None:
        super().prepare()
        self.reference(0)

    def disturb(self) -> None:
        self.table.array[:, self.batches[0][0], 0] = self.pages(1)[:, 0]


class Gather:
    """Launches upstream's kernel, which reads both the table and the copy index when it runs."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def gather(self, table: PinnedArray, copy_index: PinnedArray, destination: DeviceArray, stream: int) -> None:
        self.device.gather_host_rows(destination, table, copy_index, ROWS, BLOCKS, SCALE, V_OFFSET, stream)

    def close(self) -> None:
        """Nothing is owned here but memory, which goes with its object."""


class LiveGather(Gather):
    """Upstream: the kernel reads the live table, and a copy index that every call writes into the same buffer."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.copy_index = device.pinned((ROWS,), "int32")

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        self.copy_index.array[:] = rows
        self.gather(table, self.copy_index, destination, stream)


class ProtectedLaunch(Gather):
    """The same launch with a fix around it. `LiveGather` is what it does alone."""

    def __init__(self, around: Callable[[Callable[..., None]], Callable[..., None]], device: Device) -> None:
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


def self_test(around: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Twice each: the first time that a fix sees a table, it may do other things than from then on."""
    for scenario in (NextCall, FreedRow):
        trial(lambda device, kind=scenario: kind(device, 0, ProtectedLaunch(around, device)), times=2)  # type: ignore[misc]


class DroppedSnapshot(Gather):
    """The obvious repair: fresh pinned buffers for every call, dropped when it returns, as Python does.

    The allocator knows of no event for a custom kernel, so the buffers are free for the next call.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.allocator = CachingHostAllocator(device)

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        snapshot = self.allocator.take(SHAPE, "int32")
        copy_index = self.allocator.take((ROWS,), "int32")
        snapshot.array[:, :ROWS] = table.array[:, rows]
        copy_index.array[:] = range(ROWS)
        self.gather(snapshot, copy_index, destination, stream)
        self.allocator.give_back(snapshot)
        self.allocator.give_back(copy_index)

    def close(self) -> None:
        self.allocator.close()


def paged(scenario: type[PageTable], shipper: BuildShipper, device: Device, seed: int) -> PageTable:
    return scenario(device, seed, shipper(device))


def staged(scenario: type[PageTable], mode: str, meanwhile: str) -> Side:
    return Side(
        partial(paged, scenario, partial(Staged, layout="v2", mode=mode, index_scales=SCALE, kv_offset=V_OFFSET)),
        how=f"The call takes the rows over; the device reads only what is ours (stager, mode {mode}).",
        meanwhile=meanwhile,
        effect="the work of batch A runs and finds batch A",
    )


def copy_index_case(mode: str) -> Case:
    meanwhile = "the next call asks for the copy index of batch B"
    return Case(
        name="offsets-v2-index",
        variant=mode,
        hazard="H2",
        title="V2 block offsets: the shared copy index is overwritten while the kernel is queued",
        call="the copy index of batch A is written and the gather is enqueued",
        control_kind=ControlKind.UPSTREAM,
        control=Side(
            partial(paged, NextCall, LiveGather),
            how="As upstream: the kernel reads the pinned table and the pinned copy index when it runs.",
            meanwhile=meanwhile,
            effect="the kernel of batch A runs and gathers the rows of batch B",
        ),
        fixed=staged(NextCall, mode, meanwhile),
    )


def rebound_case(mode: str) -> Case:
    meanwhile = "a request of batch A has ended; its row is bound to another request"
    return Case(
        name="offsets-v2-rebound",
        variant=mode,
        hazard="H2",
        title="V2 block offsets: a freed row is bound to another request while the kernel is queued",
        call="batch A is shipped; nothing else is shipped after it",
        control_kind=ControlKind.UPSTREAM,
        control=Side(
            partial(paged, FreedRow, LiveGather),
            how="As upstream: the kernel reads the live table. No call follows, so the copy index stays as it is.",
            meanwhile=meanwhile,
            effect="the kernel runs and gathers the pages of a request that is not in the batch",
        ),
        fixed=staged(FreedRow, mode, meanwhile),
    )


def dropped_case(mode: str) -> Case:
    return Case(
        name="offsets-v2-dropped",
        variant=mode,
        hazard="H2",
        title="V2 block offsets: fresh pinned buffers that are dropped come back with the next call",
        call="batch A is copied to fresh pinned buffers, the gather is enqueued, the buffers are dropped",
        control_kind=ControlKind.REPAIR,
        control=Side(
            partial(paged, NextCall, DroppedSnapshot),
            how="The obvious repair: fresh buffers from a caching allocator, which learns of no event behind a kernel.",
            meanwhile="the next call gets the same buffers as fresh ones and fills them with batch B",
            effect="the kernel of batch A runs and finds batch B in its buffers",
        ),
        fixed=staged(NextCall, mode, "the next call takes another slot: the first is held by its fence"),
    )


CASES = tuple(build(mode) for build in (copy_index_case, rebound_case, dropped_case) for mode in MODES)
