"""Layout of a KV cache's memory as upstream's attention expects it. docs/native-manager.md draws it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_kvfix.managers.reports import EventManager


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
class Window:
    """An attention window, and the slots of its layers. Each window has books of its own in the core."""

    index: int  # ascending by size
    size: int
    blocks_primary: int
    blocks_host: int
    name: int | None  # as the core calls it; None: the only window, which no block leaves


@dataclass(frozen=True)
class PoolShape:
    """The layers of one window and one number of heads. Memory: [slots, layers, kv_factor, values of one block]."""

    window: Window
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
        """The factor from a slot to the offset of its first layer's K."""
        return len(self.layers) * self.kv_factor


@dataclass(frozen=True)
class CacheLayout:
    """All that the constructor's keywords say about the cache."""

    tokens_per_block: int
    windows: tuple[Window, ...]  # ascending
    window_vector: tuple[int, ...]  # as upstream writes it: layers take turns
    blocks_per_sequence: int
    pools: tuple[PoolShape, ...]
    stream: int  # the one that the model runs on
    reuse: bool
    partial_reuse: bool
    copy_on_partial_reuse: bool
    offload_priority_min: int
    events: EventManager | None
    connector: Any  # upstream's manager of connectors, or None
    pins_by_list: bool  # a pinned request is named by all its blocks, not by its last one
    chunk: int | None = None  # tokens of a prompt in one step, where prompts are reserved so; None: whole

    @property
    def ahead(self) -> int | None:
        """Positions that may be reserved beyond those known to be computed: the step that runs, and the next one."""
        return None if self.chunk is None else 2 * self.chunk

    def held_most(self, window: Window, tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at most, with those that it has from others."""
        return held_most(window.size, self.chunk, tokens, self.tokens_per_block)

    @property
    def slides(self) -> bool:
        """Blocks leave a window while their sequence lives."""
        return self.windows[0].name is not None

    def window_of(self, size: int) -> Window:
        """The window of this size. A single window always matches: upstream may have shortened it meanwhile."""
        for window in self.windows:
            if window.size == size or len(self.windows) == 1:
                return window
        raise KeyError(f"there is no window of {size}; there are {[each.size for each in self.windows]}")

    @property
    def layers(self) -> int:
        return sum(len(pool.layers) for pool in self.pools)

    def place_of(self, layer: int) -> tuple[int, int]:
        """(pool, position in it)."""
        for index, pool in enumerate(self.pools):
            if layer in pool.layers:
                return index, pool.layers.index(layer)
        raise IndexError(f"there is no layer {layer}; this rank has {self.layers}")


def held_most(window: int, chunk: int | None, tokens: int, tokens_per_block: int) -> int:
    """In a window: those that it finds there, and its own, which are not known to be computed or looked back to."""
    whole = -(-tokens // tokens_per_block)
    if chunk is None:
        return whole
    return min(whole, -(-window // tokens_per_block) + touched(window + 2 * chunk, tokens_per_block))


def touched(positions: int, tokens_per_block: int) -> int:
    """Blocks that so many positions in a row lie in at most."""
    return (positions + tokens_per_block - 2) // tokens_per_block + 1


def pools_of(
    windows: Sequence[Window],
    vector: Sequence[int],
    heads_per_layer: Sequence[int],
    values_per_head: int,
    kv_factor: int,
    element: Element,
) -> tuple[PoolShape, ...]:
    """One pool for each window, ascending, and in it for each number of heads, ascending."""
    found = []
    for window in windows:
        every = range(len(heads_per_layer))
        layers = [each for each in every if len(windows) == 1 or vector[each % len(vector)] == window.size]
        for heads in sorted({heads_per_layer[layer] for layer in layers}):
            own = tuple(layer for layer in layers if heads_per_layer[layer] == heads)
            found.append(PoolShape(window, own, kv_factor, heads * values_per_head, element))
    return tuple(found)
