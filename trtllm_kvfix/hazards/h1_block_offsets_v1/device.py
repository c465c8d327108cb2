"""H1: the V1 manager refills its persistent pinned table in place while the copy of the last contents is queued.

The offsets of a batch travel from a table in pinned memory, which the cache manager owns and rewrites, to a tensor on
the device from which attention reads them. A *shipper* is one way of sending them. H2 has the same table, and other
shippers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Side
from trtllm_kvfix.hazards.simulated import DeviceTensor, HostTensor, trial
from trtllm_kvfix.native import Device, DeviceArray, OffsetStager, PinnedArray
from trtllm_kvfix.staging import on_stream

POOLS, ROWS_MAX, PLANES, BLOCKS = SHAPE = (2, 24, 2, 64)
WORD_BYTES = 4
ROWS = 8  # sequences in a batch
PAGES = 1 << 20
MODES = ("snapshot", "early_copy")  # of the stager

Table: TypeAlias = NDArray[np.int32]
Rows: TypeAlias = Sequence[int]


class Shipper(ABC):
    def __init__(self, device: Device) -> None:
        self.device = device

    @abstractmethod
    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        """Send these rows of the table, in this order; return at once."""

    def close(self) -> None:  # noqa: B027  most own memory alone, which goes with its object
        """Give back what this shipper owns. The stream has settled."""


BuildShipper: TypeAlias = Callable[[Device], Shipper]


class OffsetArm(Arm):
    """Ships to one destination, or to two where the next call is the disturbance; both keep the rows past the batch."""

    def __init__(self, device: Device, seed: int, shipper: Shipper) -> None:
        super().__init__(device, seed)
        self.shipper = shipper
        self.table = device.pinned(SHAPE, "int32")
        self.destinations = [device.empty(SHAPE, "int32") for _ in range(2)]
        for destination in self.destinations:
            device.upload(destination, np.zeros(SHAPE, np.int32), self.held)
        self.expected = np.zeros((2, *SHAPE), np.int32)

    @abstractmethod
    def copy_batch_block_offsets(self, which: int) -> None:
        """The call of upstream's, for the first batch or the second."""

    def call(self) -> None:
        self.copy_batch_block_offsets(0)

    def disturb(self) -> None:
        self.copy_batch_block_offsets(1)

    def ship(self, rows: Rows, which: int) -> None:
        self.shipper.ship(self.table, rows, self.destinations[which], self.held)

    def compare(self) -> Comparison:
        found = [self.device.download(destination, self.held) for destination in self.destinations]
        return Comparison(self.expected, np.stack(found))

    def close(self) -> None:
        self.shipper.close()
        super().close()


class Staged(Shipper):
    """The fix: the device reads a slot that is not written again until an event behind its reader is done."""

    def __init__(self, device: Device, **layout: Any) -> None:
        super().__init__(device)
        self._stager = OffsetStager(device=device, num_pools=POOLS, rows_max=ROWS_MAX, blocks_max=BLOCKS, **layout)

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        self._stager.ship(destination, table.array, rows, stream=stream)

    def close(self) -> None:
        self._stager.close()


def cases(
    hazard: str,
    name: str,
    arm: Callable[[Device, int, Shipper], Arm],
    control: BuildShipper,
    *,
    title: str,
    call: str,
    how: str,
    meanwhile: str,
    effect: str,
    kind: ControlKind = ControlKind.UPSTREAM,
    **layout: Any,
) -> tuple[Case, ...]:
    """One for each mode of the stager. `how` and `effect` are the control's, `layout` the stager's."""

    def side(shipper: BuildShipper, how: str, effect: str) -> Side:
        return Side(lambda device, seed: arm(device, seed, shipper(device)), how, meanwhile, effect)

    def case(mode: str) -> Case:
        taken_over = f"The call takes the rows over; the device reads only what is ours (stager, mode {mode})."
        own = "the work of batch A runs and finds batch A"
        fixed = side(partial(Staged, mode=mode, **layout), taken_over, own)
        return Case(name, mode, hazard, title, call, kind, side(control, how, effect), fixed)

    return tuple(map(case, MODES))


# ---- of V1 ----


class RefilledTable(OffsetArm):
    """The manager writes every batch into the first rows of the same table; then the next batch follows."""

    def prepare(self) -> None:
        self.batches = self.random.integers(1, PAGES, (2, POOLS, ROWS, PLANES, BLOCKS), np.int32)
        self.expected[:, :, :ROWS] = self.batches

    def copy_batch_block_offsets(self, which: int) -> None:
        self.table.array[:, :ROWS] = self.batches[which]
        self.ship(list(range(ROWS)), which)


class InPlace(Shipper):
    """Upstream: one asynchronous copy per pool, straight out of the table. Each reads the table when it executes."""

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        nbytes = len(rows) * PLANES * BLOCKS * WORD_BYTES
        for start in range(0, table.nbytes, table.nbytes // POOLS):
            self.device.copy(destination.address + start, table.address + start, nbytes, stream)


class ProtectedMethod(Shipper):
    """Upstream's method with a fix around it. `InPlace` is what it does alone."""

    def __init__(self, around: Callable[[Callable[..., None]], Callable[..., None]], device: Device) -> None:
        super().__init__(device)
        self._copy = around(copy_as_upstream)
        self._managers: dict[int, Any] = {}  # by the address of their tables, which live as long

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        live = HostTensor(self.device, table, table.array)
        manager = self._managers.setdefault(table.address, SimpleNamespace(host_kv_cache_block_offsets=live))
        with on_stream(self.device, stream):
            self._copy(manager, DeviceTensor(destination), len(rows))


def copy_as_upstream(manager: Any, dst_tensor: Any, num_seqs: int) -> None:
    for pool in range(POOLS):
        dst_tensor[pool, :num_seqs].copy_(manager.host_kv_cache_block_offsets[pool, :num_seqs], non_blocking=True)


def self_test(around: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    trial(lambda device: RefilledTable(device, 0, ProtectedMethod(around, device)))


CASES = cases(
    "H1",
    "offsets-v1",
    RefilledTable,
    InPlace,
    title="V1 block offsets: the table is refilled while its copy is queued",
    call="batch A is written into the table and its copies are enqueued",
    how="As upstream: the copies read the manager's persistent pinned table.",
    meanwhile="the next call writes batch B into the same table",
    effect="the copies of batch A run and find batch B",
    layout="v1",
)
