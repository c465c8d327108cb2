"""Where the blocks of a device lie: one pool of a V1 manager, or one for each layer group."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.errors import KvfixError

Addresses = NDArray[np.uint64]


class LayoutMismatch(KvfixError):
    """The blocks of the device are not those that the host tier was built for."""


class DevicePool(NamedTuple):
    """Blocks of one size, one behind the other."""

    address: int
    blocks: int
    block_bytes: int
    kind: str  # shape of a block and its dtype, for comparison and messages


class Layout:
    """A host slot holds what all pools hold of one block, one pool behind the other."""

    def __init__(self, pools: Sequence[DevicePool]) -> None:
        if len({pool.blocks for pool in pools}) != 1:
            raise LayoutMismatch(
                f"the pools have {[pool.blocks for pool in pools]} blocks; they must have equally many"
            )
        self.pools = tuple(pools)
        self.blocks = pools[0].blocks
        self.block_bytes = sum(pool.block_bytes for pool in pools)

    @property
    def kind(self) -> tuple[str, ...]:
        """What two layouts share whose blocks mean the same."""
        return tuple(f"{pool.blocks} blocks of {pool.block_bytes} bytes, {pool.kind}" for pool in self.pools)

    def device_addresses(self, blocks: Sequence[int]) -> Addresses:
        numbers = checked(blocks, self.blocks, "block of the device")
        return np.concatenate([np.uint64(pool.address) + numbers * np.uint64(pool.block_bytes) for pool in self.pools])

    def host_addresses(self, slots: Sequence[int], first: int, slots_max: int) -> Addresses:
        numbers = checked(slots, slots_max, "slot of the host pool")
        starts = np.uint64(first) + numbers * np.uint64(self.block_bytes)
        offsets = np.cumsum([0, *(pool.block_bytes for pool in self.pools[:-1])], dtype=np.uint64)
        return np.concatenate([starts + offset for offset in offsets])

    def sizes(self, blocks: int) -> Addresses:
        return np.repeat(np.array([pool.block_bytes for pool in self.pools], np.uint64), blocks)


def require_alike(layouts: Sequence[Layout]) -> None:
    """Of all ranks: what one of them decides on, numbers of blocks, must mean the same on each."""
    for rank, layout in enumerate(layouts):
        if layout.kind != layouts[0].kind:
            raise LayoutMismatch(
                f"rank {rank} differs from rank 0: {'; '.join(layout.kind)}, not {'; '.join(layouts[0].kind)}"
            )


def checked(numbers: Sequence[int], limit: int, what: str) -> Addresses:
    """A number out of range would be a stray read or write of the device."""
    array = np.asarray(numbers, np.int64)
    if len(array) and not 0 <= array.min() <= array.max() < limit:
        raise LayoutMismatch(
            f"{what} {array.min()} to {array.max()}: there are {limit}; the pool changed after it was registered"
        )
    return array.astype(np.uint64)


def pool_of(tensor: Any) -> DevicePool:
    """Of upstream's primary pool, a torch tensor (blocks, layers, kv, ...), or of a native DeviceArray."""
    shape = tuple(int(size) for size in tensor.shape)
    if hasattr(tensor, "data_ptr"):
        if not tensor.is_contiguous():
            raise LayoutMismatch(f"the pool of shape {shape} is not contiguous; its blocks cannot be copied whole")
        address, total = int(tensor.data_ptr()), int(tensor.numel()) * int(tensor.element_size())
    else:
        address, total = int(tensor.address), int(tensor.nbytes)
    if not shape or shape[0] < 1 or total % shape[0]:
        raise LayoutMismatch(f"a pool of shape {shape} and {total} bytes has no whole blocks")
    return DevicePool(address, shape[0], total // shape[0], f"{list(shape[1:])} {tensor.dtype}")
