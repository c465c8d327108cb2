"""H1: the V1 manager refills its persistent pinned table in place while the copy of the last contents is queued."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from trtllm_kvfix.hazards.offsets import (
    BLOCKS,
    PAGES,
    PLANES,
    POOLS,
    ROWS,
    WORD_BYTES,
    OffsetArm,
    Rows,
    Shipper,
    cases,
)
from trtllm_kvfix.hazards.simulated import DeviceTensor, HostTensor, trial
from trtllm_kvfix.native import Device, DeviceArray, PinnedArray
from trtllm_kvfix.staging import on_stream


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
