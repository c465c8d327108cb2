"""The ways of shipping block offsets that bench_staging.py compares. The racy ones are written as upstream's."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from trtllm_kvfix import native
from trtllm_kvfix.native import OffsetStager
from trtllm_kvfix.staging.place import stream_of_torch

SCALE, V_OFFSET = 2, 1
CHANGED = 0.03  # of the rows, before each call


@dataclass
class Case:
    """A live table in pinned memory, and a batch of all its rows."""

    pools: int
    sequences: int
    blocks: int
    table: Any = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.mirror: Any = None  # a second table that must always hold the same
        self.table = torch.zeros((self.pools, self.sequences, 2, self.blocks), dtype=torch.int32, pin_memory=True)
        self.array = self.table.numpy()
        self.array[:, :, 0] = self.rng.integers(0, 1 << 20, self.array[:, :, 0].shape)
        self.array[:, :, 1] = self.array[:, :, 0] + 1

    @property
    def name(self) -> str:
        return f"{self.pools}x{self.sequences}x{self.blocks}@{round(CHANGED * 100)}%"

    def change_some(self) -> None:
        """New page numbers in some rows, as new sequences bring them."""
        k, v = self.array[:, :, 0], self.array[:, :, 1]
        rows = self.rng.permutation(self.sequences)[: max(1, int(self.sequences * CHANGED))]
        k[:, rows] = self.rng.integers(0, 1 << 20, k[:, rows].shape)
        v[:, rows] = k[:, rows] + 1
        if self.mirror is not None:
            self.mirror[...] = self.array


class Variant:
    """One way; `ship` is what is timed."""

    def __init__(self, name: str, case: Case, ship: Callable[["Variant"], None], *, layout: str) -> None:
        self.name, self.case, self.layout = name, case, layout
        self.dst = torch.full_like(case.table, -7, device="cuda")
        self._ship = ship
        self.close: Callable[[], None] = lambda: None
        case.mirror = None

    def ship(self) -> None:
        self._ship(self)

    def check(self) -> None:
        expected = torch.from_numpy(self.case.array.copy())
        if self.layout == "v2":
            expected[:, :, 0] *= SCALE
            expected[:, :, 1] = expected[:, :, 0] + V_OFFSET
        if not torch.equal(self.dst.cpu(), expected):
            raise AssertionError(f"{self.name} shipped something else in {self.case.name}")


def racy_v1(device: native.Device, case: Case) -> Variant:  # noqa: ARG001  every variant is made the same way
    """The persistent table itself is the source of the asynchronous copy."""

    def ship(self: Variant) -> None:
        for pool in range(case.pools):
            self.dst[pool, : case.sequences].copy_(case.table[pool, : case.sequences], non_blocking=True)

    return Variant("racy_v1", case, ship, layout="v1")


def staged_v1(device: native.Device, case: Case) -> Variant:  # noqa: ARG001
    """The published fix: a fresh pinned tensor each time, which the caching allocator keeps until the copy is done."""

    def ship(self: Variant) -> None:
        staged = torch.empty_like(case.table, pin_memory=True)
        staged.copy_(case.table)
        for pool in range(case.pools):
            self.dst[pool, : case.sequences].copy_(staged[pool], non_blocking=True)

    return Variant("staged_v1", case, ship, layout="v1")


class _V2Buffers:
    """Upstream's V2 manager keeps these: the table, a copy index, and per-pool scales."""

    def __init__(self, device: native.Device, case: Case) -> None:
        shape = [case.pools, case.sequences, 2, case.blocks]
        self.table = device.pinned(shape, "int32")
        self.index = device.pinned([case.sequences], "int32")
        self.index.array[:] = np.arange(case.sequences)
        self.destination = device.empty(shape, "int32")


def _launch_gather(device: native.Device, case: Case, buffers: _V2Buffers, table: native.PinnedArray) -> None:
    device.gather_host_rows(
        buffers.destination,
        table,
        buffers.index,
        case.sequences,
        case.blocks,
        [SCALE] * case.pools,
        [V_OFFSET] * case.pools,
        torch.cuda.current_stream().cuda_stream,
    )


def racy_v2(device: native.Device, case: Case) -> Variant:
    """A kernel that reads the pinned table when it runs."""
    buffers = _V2Buffers(device, case)
    variant = Variant("racy_v2", case, lambda _: _launch_gather(device, case, buffers, buffers.table), layout="v2")
    case.mirror = buffers.table.array  # the cache writes the table itself, outside the clock
    variant.check = lambda: _check_buffers(device, variant, buffers)  # type: ignore[method-assign]
    return variant


def _check_buffers(device: native.Device, variant: Variant, buffers: _V2Buffers) -> None:
    downloaded = device.download(buffers.destination, torch.cuda.current_stream().cuda_stream)
    variant.dst.copy_(torch.from_numpy(downloaded))
    Variant.check(variant)


def snapshot_event_v2(device: native.Device, case: Case) -> Variant:
    """The proposed fix of V2: K rows go into a pinned buffer of their own, kept until an event behind the kernel.

    Buffers come round again, where the proposal allocates: its cost is a little higher than this.
    """
    buffers = _V2Buffers(device, case)
    rows = torch.arange(case.sequences)
    spare = [device.pinned([case.pools, case.sequences, 2, case.blocks], "int32") for _ in range(4)]
    pending: deque[tuple[Any, Any]] = deque()

    def ship(self: Variant) -> None:  # noqa: ARG001
        while pending and pending[0][1].query():
            spare.append(pending.popleft()[0])
        fresh = spare.pop()
        torch.index_select(case.table[:, :, 0], 1, rows, out=torch.from_numpy(fresh.array)[:, :, 0])
        _launch_gather(device, case, buffers, fresh)
        event = torch.cuda.Event()
        event.record()
        pending.append((fresh, event))

    variant = Variant("snapshot_event_v2", case, ship, layout="v2")
    variant.check = lambda: _check_buffers(device, variant, buffers)  # type: ignore[method-assign]
    return variant


def ours(layout: str, mode: str, *, lent: bool = False) -> Callable[[native.Device, Case], Variant]:
    def make(device: native.Device, case: Case) -> Variant:
        scales: dict[str, Any] = (
            {} if layout == "v1" else {"index_scales": [SCALE] * case.pools, "kv_offset": [V_OFFSET] * case.pools}
        )
        stager = OffsetStager(
            layout=layout,
            num_pools=case.pools,
            rows_max=case.sequences,
            blocks_max=case.blocks,
            device=device,
            mode=mode,
            **scales,
        )
        rows = case.sequences if layout == "v1" else np.arange(case.sequences)
        current_stream = partial(stream_of_torch(), torch.cuda.current_device())

        def ship(self: Variant) -> None:
            if lent:
                stager.settle()
            stager.ship(self.dst, case.array, rows, stream=current_stream(), lent=lent)

        variant = Variant(
            f"ours_{layout}_{mode}{'_lent' if lent else ''}",
            case,
            ship,
            layout=layout,
        )
        variant.close = stager.close
        return variant

    return make


VARIANTS = (
    racy_v1,
    staged_v1,
    racy_v2,
    snapshot_event_v2,
    *(ours(layout, mode) for layout in ("v1", "v2") for mode in ("snapshot", "early_copy", "auto")),
    ours("v1", "auto", lent=True),
)
