"""How upstream's attention expects the memory of a KV cache to lie. docs/native-manager.md draws it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_kvfix.managers.events import EventManager


@dataclass(frozen=True)
class Element:
    """The type of one value in the cache."""

    torch_name: str
    numpy_name: str  # of the same size, where numpy has no such type
    nbytes: int


ELEMENTS = {
    "HALF": Element("float16", "float16", 2),
    "BF16": Element("bfloat16", "uint16", 2),
    "FP8": Element("float8_e4m3fn", "uint8", 1),
}


@dataclass(frozen=True)
class PoolShape:
    """The layers that have one number of heads. Memory: [slots, layers, kv_factor, values of one block]."""

    layers: tuple[int, ...]  # of this rank, ascending
    kv_factor: int  # 2: K and V; 1: MLA, which keeps one latent
    values: int  # of one layer's K in one block: heads * tokens * size of a head
    element: Element

    @property
    def side_bytes(self) -> int:
        """One layer's K, or its V, in one block: the unit that block offsets count."""
        return self.values * self.element.nbytes

    @property
    def slot_bytes(self) -> int:
        return len(self.layers) * self.kv_factor * self.side_bytes

    @property
    def offset_scale(self) -> int:
        """From a slot to the offset of its first layer's K."""
        return len(self.layers) * self.kv_factor


@dataclass(frozen=True)
class Layout:
    """Everything that the constructor's keywords say."""

    tokens_per_block: int
    window: int
    blocks_primary: int
    blocks_host: int
    blocks_per_sequence: int
    pools: tuple[PoolShape, ...]
    stream: int  # on which the model runs
    reuse: bool
    partial_reuse: bool
    copy_on_partial_reuse: bool
    offload_priority_min: int
    events: EventManager | None
    connector: Any  # upstream's manager of connectors, or None
    pins_by_list: bool  # a pinned request is named by all its blocks, not by its last one

    @property
    def layers(self) -> int:
        return sum(len(pool.layers) for pool in self.pools)

    def place_of(self, layer: int) -> tuple[int, int]:
        """(pool, position in it)."""
        for index, pool in enumerate(self.pools):
            if layer in pool.layers:
                return index, pool.layers.index(layer)
        raise IndexError(f"there is no layer {layer}; this rank has {self.layers}")


def pools_of(
    heads_per_layer: Sequence[int], head_size: int, tokens_per_block: int, kv_factor: int, element: Element
) -> tuple[PoolShape, ...]:
    """One pool for each number of heads, ascending."""
    return tuple(
        PoolShape(
            tuple(layer for layer, own in enumerate(heads_per_layer) if own == heads),
            kv_factor,
            heads * tokens_per_block * head_size,
            element,
        )
        for heads in sorted(set(heads_per_layer))
    )
