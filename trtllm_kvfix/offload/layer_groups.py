"""Upstream's description of a cache with several pools: ranges of bytes that repeat for each block, by layer group.

Groups differ in their attention window. A window that slides makes upstream give blocks away while their request lives,
and tell connectors only of those that are added; so what a store would read could be another request's.
"""

from collections.abc import Iterator
from typing import Any

from trtllm_kvfix.offload.layout import DevicePool, Layout, LayoutMismatch


def layout_of(description: Any, tokens_per_block: int, tokens_max: int | None) -> Layout:
    """`tokens_max` of a request; with None any window is taken to slide."""
    if description.tokens_per_block != tokens_per_block:
        raise LayoutMismatch(
            f"the cache has blocks of {description.tokens_per_block} tokens, the configuration says {tokens_per_block}"
        )
    for group in description.groups:
        require_full_attention(f"layer group {group.layer_group_id}", group.window_size, tokens_max)
    return Layout([pool for group in description.groups for pool in pools_of(group)])


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
