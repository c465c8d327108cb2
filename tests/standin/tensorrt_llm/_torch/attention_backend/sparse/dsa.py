"""Sparse attention: a V1 manager whose host table is read on the CPU as well (surface 1.1, 1.7)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ...pyexecutor.resource_manager import KVCacheManager


class DSACacheManager(KVCacheManager):
    """Keys only, so an offset is a slot times the layers."""

    def pool_block_indices(self, host_table: Any, num_seqs: int) -> npt.NDArray[np.int32]:
        """Upstream's `_get_pool_block_indices`. It wants the table filled, whole, and where it always was."""
        offsets: npt.NDArray[np.int32] = host_table.numpy()[0, :num_seqs, 0, :]
        return np.clip(offsets // self.num_local_layers, 0, self.blocks_in_primary_pool - 1)
