"""H1: the V1 manager refills its persistent pinned table in place while the copy of the last contents is queued."""

from functools import partial

import numpy as np

from trtllm_kvfix.hazards.case import Case, ControlKind, Side
from trtllm_kvfix.hazards.offsets import (
    BLOCKS,
    MODES,
    PAGES,
    PLANES,
    POOLS,
    ROWS,
    WORD_BYTES,
    BuildShipper,
    OffsetArm,
    Rows,
    Staged,
)
from trtllm_kvfix.native import Device, DeviceArray, PinnedArray


class RefilledTable(OffsetArm):
    """The manager writes every batch into the first rows of the same table; then the next batch follows."""

    def prepare(self) -> None:
        self.batches = self.random.integers(1, PAGES, (2, POOLS, ROWS, PLANES, BLOCKS), np.int32)
        self.expected[:, :, :ROWS] = self.batches

    def call(self) -> None:
        self.copy_batch_block_offsets(0)

    def disturb(self) -> None:
        self.copy_batch_block_offsets(1)

    def copy_batch_block_offsets(self, which: int) -> None:
        self.table.array[:, :ROWS] = self.batches[which]
        self.ship(list(range(ROWS)), which)


class InPlace:
    """Upstream: one asynchronous copy per pool, straight out of the table. Each reads the table when it executes."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def ship(self, table: PinnedArray, rows: Rows, destination: DeviceArray, stream: int) -> None:
        nbytes = len(rows) * PLANES * BLOCKS * WORD_BYTES
        for start in range(0, table.nbytes, table.nbytes // POOLS):
            self.device.copy(destination.address + start, table.address + start, nbytes, stream)

    def close(self) -> None:
        """Nothing is owned here."""


def refilled(shipper: BuildShipper, device: Device, seed: int) -> RefilledTable:
    return RefilledTable(device, seed, shipper(device))


def case(mode: str) -> Case:
    return Case(
        name="offsets-v1",
        variant=mode,
        hazard="H1",
        title="V1 block offsets: the table is refilled while its copy is queued",
        call="batch A is written into the table and its copies are enqueued",
        control_kind=ControlKind.UPSTREAM,
        control=Side(
            partial(refilled, InPlace),
            how="As upstream: the copies read the manager's persistent pinned table.",
            meanwhile="the next call writes batch B into the same table",
            effect="the copies of batch A run and find batch B",
        ),
        fixed=Side(
            partial(refilled, partial(Staged, layout="v1", mode=mode)),
            how=f"The copies read a pinned slot that the call has filled (stager, mode {mode}).",
            meanwhile="the next call writes batch B into the same table",
            effect="the copies of batch A run and find batch A, in their slot",
        ),
    )


CASES = tuple(map(case, MODES))
