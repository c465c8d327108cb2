"""Upstream's description of a cache with several pools: ranges of bytes that repeat for each block, by layer group.

Groups differ in their attention window. With a sliding window, upstream gives blocks away while their request lives,
and reports only added blocks to connectors; so a store could read the blocks of another request.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from trtllm_kvfix.offload.layout import DevicePool, Layout, LayoutMismatch

WINDOWS = ("window_size", "sliding_window_size")  # as releases name it
SEQUENCES = (list, tuple)  # their union would be made anew for each block that a request fills
ByGroup: TypeAlias = Sequence[Any] | Mapping[Any, Any]  # at the number of a group, or under it


def layout_of(description: Any, tokens_per_block: int, tokens_max: int | None) -> Layout:
    """`tokens_max` is that of a request; with None every window counts as sliding."""
    if description.tokens_per_block != tokens_per_block:
        raise LayoutMismatch(
            f"the cache has blocks of {description.tokens_per_block} tokens, the configuration says {tokens_per_block}"
        )
    groups = in_order(description.groups)
    for group in groups:
        for name in WINDOWS:
            require_full_attention(f"layer group {group.layer_group_id}", getattr(group, name, None), tokens_max)
    return Layout([pool for group in groups for pool in pools_of(group)])


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
