"""Ships block offsets so that the caller may overwrite its table the moment `ship` returns.

    stager = OffsetStager(layout="v1", num_pools=1, rows_max=256, blocks_max=1024)
    stager.ship(dst, table, range(num_seqs))  # dst: CUDA int32 (pools, n_max, 2, blocks); its address stays
    table[...] = next_batch  # safe

The work is done natively (cpp/staging); this class turns tensors and arrays into addresses and refuses what does not
fit.
"""

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from trtllm_kvfix import native
from trtllm_kvfix.staging.destination import Destination


class Route:
    """The way from one live table to one destination. Usually the next ship takes the same way as the last.

    It does not keep the table, whose owner may drop it at any time; `leads` checks whether it is still there.
    """

    def __init__(self, stager: native.NativeStager, device: native.Device, dst: Any, table: Any) -> None:
        self._table = weakref.ref(table)
        self._table_address = table.data_ptr() if hasattr(table, "data_ptr") else 0  # an array stays where it is
        self._target = target = Destination.of(dst, device)
        self._dst = dst
        self.current_stream = target.current_stream
        self.ship = native.OffsetRoute(
            stager, target.address, target.pool_stride, target.rows, target.blocks, _host_array(table)
        ).ship

    def leads(self, table: Any, dst: Any) -> bool:
        """Whether the way leads from the same table to the same destination, both still at the same place."""
        same: Any = self._table()
        return same is table and self._dst is dst and self.is_at_its_place(table)

    def is_at_its_place(self, table: Any) -> bool:
        """Whether this very table and the destination are still at their places."""
        return (
            self._table_address == 0 or bool(table.data_ptr() == self._table_address)
        ) and self._target.is_at_its_place()


class OffsetStager:
    """One stager per destination layout. `ship` may be called from any thread, on any stream."""

    def __init__(
        self,
        *,
        layout: str,
        num_pools: int,
        rows_max: int,
        blocks_max: int,
        device: "str | native.Device" = "auto",
        mode: str = "auto",
        slots: int = 3,
        index_scales: Sequence[int] | None = None,
        kv_offset: Sequence[int] | None = None,
    ) -> None:
        self.device = native.open_device(device) if isinstance(device, str) else device
        self._route: Route | None = None  # of the last ship
        self._native = native.NativeStager(
            self.device,
            layout=layout,
            num_pools=num_pools,
            rows_max=rows_max,
            blocks_max=blocks_max,
            mode=mode,
            slots=slots,
            index_scales=None if index_scales is None else [int(scale) for scale in index_scales],
            kv_offset=None if kv_offset is None else [int(offset) for offset in kv_offset],
        )
        # Whether a table that is lent may still be read when `ship` returns.
        self.lends = self._native.stats().mode == "early_copy"

    def ship(
        self,
        dst: Any,
        table: Any,
        rows: Any,
        *,
        width: int | None = None,
        stream: int | None = None,
        lent: bool = False,
    ) -> None:
        """Row `rows[i]` of `table` goes to row i of `dst`; the rest of `dst` stays untouched.

        dst: a CUDA tensor or a native DeviceArray, int32 (pools, n_max, 2, blocks). table: the live host table, a numpy
        array or a CPU tensor of the same kind. rows: numbers, or how many from the first on. stream: a handle; by
        default the current stream of the tensor's device. lent: the caller promises not to write the table before
        `settle` returns, so this call need not wait until it is read.
        """
        route = self._route
        if route is None or not route.leads(table, dst):
            route = self._route = self.route(dst, table)
        numbers = rows if type(rows) is int else _row_numbers(rows)
        route.ship(numbers, route.current_stream() if stream is None else stream, width, lent)

    def route(self, dst: Any, table: Any) -> Route:
        """A route for a caller that ships by it again and again, and checks itself whether it still leads there."""
        return Route(self._native, self.device, dst, table)

    def settle(self) -> None:
        """Wait until the caller may write what it has lent."""
        self._native.settle()

    def stats(self) -> native.StagerStats:
        return self._native.stats()

    def close(self) -> None:
        """Wait for pending ships and free the memory; later ships are refused."""
        self._native.close()

    def __enter__(self) -> "OffsetStager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _host_array(table: Any) -> npt.NDArray[np.int32]:
    """The table's memory as numpy sees it, never a copy."""
    array = table if isinstance(table, np.ndarray) else table.numpy()
    if array.dtype != np.int32 or array.ndim != 4:
        raise ValueError(
            f"table is {array.dtype} with {array.ndim} dimensions; expected int32 (pools, rows, 2, blocks)"
        )
    return array


def _row_numbers(rows: Any) -> Any:
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    return rows.numpy() if hasattr(rows, "numpy") and not isinstance(rows, np.ndarray) else rows
