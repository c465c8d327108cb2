"""Rows and a copy index that a kernel of upstream's may read, since nothing else writes them."""

from typing import Any, NamedTuple

import numpy as np

from trtllm_kvfix.staging import Mark, current_place, in_use


class Lot(NamedTuple):
    rows: Any
    order: Any  # the copy index into them


def private_lot(table: Any, copy_index: Any) -> Lot:
    index = copy_index.numpy()
    pools, _, planes, blocks = table.shape
    rows = table.new_empty((pools, len(index), planes, blocks), pin_memory=table.is_pinned())
    rows.numpy()[:, :, 0] = table.numpy()[:, index, 0]
    order = fresh_pinned(copy_index)
    order.numpy()[...] = np.arange(len(index))
    return Lot(rows, order)


def keep_until_read(lot: Lot, stream: int) -> None:
    """Its kernel has been launched on the stream."""
    mark = Mark(current_place().device, stream)
    mark.record()
    in_use.keep(mark, lot)


def fresh_pinned(tensor: Any) -> Any:
    return tensor.new_empty(tuple(tensor.shape), pin_memory=tensor.is_pinned())
