"""Where a block lies: on the device, in one pool or in several, and in its slot of the host pool.

Upstream describes a cache of several pools by ranges of bytes that repeat for each block, by layer group. Groups differ
in their attention window. With a sliding window, upstream gives blocks away while their request lives, and reports only
added blocks to connectors. A store could then read the blocks of another request, so such a cache is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import HostPool

Addresses = NDArray[np.uint64]


class LayoutMismatch(KvfixError):
    """The blocks of the device are not those that the host tier was built for."""


class DevicePool(NamedTuple):
    """Blocks of one size at equal distances."""

    address: int
    blocks: int
    block_bytes: int
    kind: str  # the parts of a block, for comparison and messages
    stride: int  # from one block to the next
    group: int = 0  # the layer group that the numbers of blocks belong to


class BlockLayout:
    """A slot of the host pool begins with the parts of one block from all pools, one pool behind the other."""

    def __init__(self, pools: Sequence[DevicePool]) -> None:
        for pool in pools:
            if pool.stride < pool.block_bytes or pool.blocks < 1:
                raise LayoutMismatch(f"a pool of {pool.blocks} blocks of {pool.block_bytes} bytes, {pool.stride} apart")
        if not pools:
            raise LayoutMismatch("there is no pool; the connector was registered before the cache had one")
        self.pools = tuple(pools)
        self.block_bytes = sum(pool.block_bytes for pool in pools)

    @property
    def kind(self) -> tuple[str, ...]:
        """Equal for two layouts whose blocks mean the same."""
        return tuple(f"{pool.blocks} blocks of {pool.block_bytes} bytes, {pool.kind}" for pool in self.pools)

    def device_addresses(self, blocks: Sequence[int], count: int) -> Addresses:
        """The ranges of `count` blocks, by their numbers in the first layer group, then in the next, and so on."""
        groups = np.asarray(blocks, np.int64).reshape(-1, count)
        return np.concatenate([self._addresses(pool, groups) for pool in self.pools])

    def _addresses(self, pool: DevicePool, groups: NDArray[np.int64]) -> Addresses:
        if pool.group >= len(groups):
            raise LayoutMismatch(f"blocks of {len(groups)} layer groups, but {pool.kind} belong to group {pool.group}")
        numbers = checked(groups[pool.group], pool.blocks, "block of the device")
        return np.uint64(pool.address) + numbers * np.uint64(pool.stride)

    def host_addresses(self, slots: Sequence[int], pool: HostPool) -> Addresses:
        numbers = checked(slots, pool.slots, "slot of the host pool")
        starts = np.uint64(pool.address) + numbers * np.uint64(pool.slot_bytes)
        offsets = np.cumsum([0, *(pool.block_bytes for pool in self.pools[:-1])], dtype=np.uint64)
        return np.concatenate([starts + offset for offset in offsets])

    def sizes(self, blocks: int) -> Addresses:
        return np.repeat(np.array([pool.block_bytes for pool in self.pools], np.uint64), blocks)


def require_alike(layouts: Sequence[BlockLayout]) -> None:
    """Compare all ranks: a block number that one rank decides on must mean the same on each."""
    for rank, layout in enumerate(layouts):
        if layout.kind != layouts[0].kind:
            raise LayoutMismatch(
                f"rank {rank} differs from rank 0: {'; '.join(layout.kind)}, not {'; '.join(layouts[0].kind)}"
            )


def checked(numbers: Sequence[int] | NDArray[np.int64], limit: int, what: str) -> Addresses:
    """Refuse a number out of range: the device would read or write stray memory."""
    array = np.asarray(numbers, np.int64)
    if len(array) and not 0 <= array.min() <= array.max() < limit:
        raise LayoutMismatch(
            f"{what} {array.min()} to {array.max()}: there are {limit}; the pool changed after it was registered"
        )
    return array.astype(np.uint64)


def pool_of(tensor: Any) -> DevicePool:
    """The layout of upstream's primary pool, a torch tensor (blocks, layers, kv, ...), or of a native DeviceArray."""
    shape = tuple(int(size) for size in tensor.shape)
    if hasattr(tensor, "data_ptr"):
        if not tensor.is_contiguous():
            raise LayoutMismatch(f"the pool of shape {shape} is not contiguous; its blocks cannot be copied whole")
        address, total = int(tensor.data_ptr()), int(tensor.numel()) * int(tensor.element_size())
    else:
        address, total = int(tensor.address), int(tensor.nbytes)
    if not shape or shape[0] < 1 or total % shape[0]:
        raise LayoutMismatch(f"a pool of shape {shape} and {total} bytes has no whole blocks")
    block_bytes = total // shape[0]
    return DevicePool(address, shape[0], block_bytes, f"{list(shape[1:])} {tensor.dtype}", block_bytes)


WINDOWS = ("window_size", "sliding_window_size")  # as releases name it
SEQUENCES = (list, tuple)  # their union would be made anew for each block that a request fills
ByGroup: TypeAlias = Sequence[Any] | Mapping[Any, Any]  # at the number of a group, or under it


def layout_of(description: Any, tokens_per_block: int, tokens_max: int | None) -> BlockLayout:
    """Read upstream's description. A request has up to `tokens_max` tokens; if None, every window slides."""
    if description.tokens_per_block != tokens_per_block:
        raise LayoutMismatch(
            f"the cache has blocks of {description.tokens_per_block} tokens, the configuration says {tokens_per_block}"
        )
    groups = in_order(description.groups)
    for group in groups:
        for name in WINDOWS:
            require_full_attention(f"layer group {group.layer_group_id}", getattr(group, name, None), tokens_max)
    return BlockLayout([pool for group in groups for pool in pools_of(group)])


def in_order(by_group: ByGroup) -> list[Any]:
    """The entries of all groups that exist, in the order of their numbers."""
    return [by_group[key] for key in sorted(by_group, key=int)] if isinstance(by_group, Mapping) else list(by_group)


def blocks_by_group(by_group: ByGroup) -> list[list[int]]:
    """The blocks of each group, at its number. A group that does not exist has none."""
    if not isinstance(by_group, Mapping):
        return [flat(blocks) for blocks in by_group]
    numbered = {int(group): flat(blocks) for group, blocks in by_group.items()}
    return [numbered.get(group, []) for group in range(max(numbered, default=-1) + 1)]


def flat(block_ids: Sequence[Any]) -> list[int]:
    """Block ids are a list, or one list for each beam; this connector keeps requests of one beam."""
    if block_ids and isinstance(block_ids[0], SEQUENCES):
        return [int(block) for block in chain.from_iterable(block_ids)]
    return [int(block) for block in block_ids]


def require_no_sliding(manager: Any) -> None:
    """Check the cache manager itself. The description of a cache, which comes first, may leave windows out."""
    tokens_max = getattr(manager, "max_seq_len", None)
    layers = getattr(getattr(manager, "kv_cache_manager_py_config", None), "layers", None) or ()
    windows = [getattr(layer, name, None) for layer in layers for name in WINDOWS]
    for window in (*windows, *(getattr(manager, "max_attention_window_vec", None) or ())):
        require_full_attention("a layer of this model", window, tokens_max)


def require_full_attention(what: str, window: int | None, tokens_max: int | None) -> None:
    if window is not None and (tokens_max is None or window < tokens_max):
        raise LayoutMismatch(
            f"{what} has a window of {window} tokens, and requests have up to {tokens_max or 'any number'}: blocks "
            "that leave a window are given away, so prefixes cannot be kept whole. Set max_seq_len to the window or "
            "below, or serve this model without the offload connector"
        )


def pools_of(group: Any) -> Iterator[DevicePool]:
    for region in (*group.regions, *getattr(group, "replicated_regions", ())):
        layers = sorted({buffer.layer_id for buffer in region.buffers})
        roles = "/".join(sorted({buffer.role for buffer in region.buffers}))
        kind = f"{roles} of {len(layers)} layers from {layers[0]} to {layers[-1]} in layer group {group.layer_group_id}"
        yield DevicePool(
            int(region.base), int(region.num_slots), int(region.size), kind, int(region.stride),
            int(group.layer_group_id),
        )  # fmt: skip
