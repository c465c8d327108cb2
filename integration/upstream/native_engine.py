"""A forward pass that writes the memory of the cache and reads it back, where upstream's own tables say that it lies.

An address is the pool's pointer, the layer's row in the mapping and the block offset that the device was given. What is
written names the whole prefix, the layer, K or V, and the head. So a wrong slot, a copy that is late or missing, and a
block that was stored before it was computed are all read as something else.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from integration.upstream import late
from integration.upstream.contents import Step, prefix_names
from integration.upstream.engine import Engine
from trtllm_kvfix.staging import current_place

Words = npt.NDArray[np.uint32]
PRIMES = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D], np.uint64)
WORD = 4  # one head's value of one token: two halves


@dataclass
class Forward:
    """One batch, from its launch to the moment the host has waited for it."""

    steps: list[Step]
    rows: dict[int, int] = field(default_factory=dict)


class MemoryEngine(Engine):
    values_read = 0
    positions_left = 0  # out of the window of whoever would have read them

    def _launched(self, contexts: list[Any], generations: list[Any], steps: list[Step]) -> Any:
        forward = Forward(steps)
        for row, request in enumerate((*contexts, *generations)):
            forward.rows[request.py_request_id] = row
        table = self.attn_metadata.kv_cache_block_offsets
        for load in self.arriving:
            late.late().run(current_place().stream, load)
        self.arriving = []
        late.late().run(current_place().stream, lambda: self._compute(forward, late.plain(table)))
        return forward

    def ran(self, batch: Any) -> None:
        """Judged when it ran."""

    def _compute(self, forward: Forward, table: Any) -> None:
        offsets = table.numpy()
        for step in forward.steps:
            row = forward.rows[step.request_id]
            names = _unsigned(prefix_names(step.tokens))
            for pool, layer, place in self._layers():
                for side in range(self.manager.kv_factor):
                    for head in range(self.manager.num_kv_heads_per_layer[layer]):
                        where = self._places(pool, layer, place, side, head, offsets[pool, row, side], step.end)
                        self._visit(step, pool, where, _values(names, layer, side, head), layer)

    def _visit(self, step: Step, pool: int, where: Any, wanted: Words, layer: int) -> None:
        """A token sees those of its window, itself among them; the first token of the step sees furthest."""
        words = self._words(pool)
        words[where[step.begin :]] = wanted[step.begin : step.end]
        first = max(0, step.begin + 1 - self._window(pool))
        found = words[where[first : step.begin]]
        self.values_read += len(found)
        self.positions_left += first
        wrong = np.nonzero(found != wanted[first : step.begin])[0]
        if len(wrong):
            what = "nothing" if found[wrong[0]] == 0 else "something else"
            self.contents.corrupt.append(
                f"request {step.request_id}: token {first + wrong[0]} of {step.begin}, layer {layer}, reads {what}"
            )

    def slots_of(self, request_id: int, window: int) -> list[int]:
        (slots,) = self.manager.impl.get_cache_block_ids(request_id, window)
        return list(slots)

    def fill(self, window: int, slots: list[int], tokens: list[int], begin: int, end: int) -> None:
        names = _unsigned(prefix_names(tokens))
        unit = self.manager.tokens_per_block
        for pool, layer, place in self._layers():
            if self._window(pool) != window:
                continue
            scale = self.manager.impl.layout.pools[pool].offset_scale
            for side in range(self.manager.kv_factor):
                row = np.array([slot * scale + side for slot in slots])
                for head in range(self.manager.num_kv_heads_per_layer[layer]):
                    where = self._places(pool, layer, place, side, head, row, min(end, len(slots) * unit))
                    self._words(pool)[where[begin:]] = _values(names, layer, side, head)[begin:end]

    def _layers(self) -> list[tuple[int, int, int]]:
        """(pool, layer, position in the pool)."""
        mapping = self.manager.kv_cache_pool_mapping.tolist()
        return [(pool, layer, place) for layer, (pool, place) in enumerate(mapping)]

    def _places(self, pool: int, layer: int, place: int, side: int, head: int, row: Any, end: int) -> Any:
        """The word in the pool for each position."""
        del pool, side  # the row is of this pool and side
        tokens = self.manager.tokens_per_block
        side_words = self.manager.num_kv_heads_per_layer[layer] * tokens
        positions = np.arange(end)
        units = row[positions // tokens].astype(np.int64) + place * self.manager.kv_factor
        return units * side_words + head * tokens + positions % tokens

    def _window(self, pool: int) -> int:
        """The window of a pool's layers, which upstream lets take turns."""
        vector = self.manager.max_attention_window_vec
        layer = next(layer for own, layer, _ in self._layers() if own == pool)
        return int(vector[layer % len(vector)])

    def _words(self, pool: int, tier: int = 0) -> Words:
        """A pool on the device, or its host tier."""
        address = int(self.manager.kv_cache_pool_pointers[pool, tier])
        shape = self.manager.impl.layout.pools[pool]
        slots = shape.window.blocks_host if tier else shape.window.blocks_primary
        memory: Any = (ctypes.c_uint32 * (slots * shape.slot_bytes // WORD)).from_address(address)
        return np.frombuffer(memory, np.uint32)

    def read_block(self, names: list[int], number: int, slot: int, tier: str, window: int | None = None) -> None:
        """Reads from the host now what a slot of a tier holds of a prompt's block. Without a window, in all pools."""
        tokens = self.manager.tokens_per_block
        mine = _unsigned(names[number * tokens : (number + 1) * tokens])
        for pool, layer, place in self._layers():
            if window is not None and self._window(pool) != window:
                continue
            words = self._words(pool, 1 if tier == "host" else 0)
            heads = self.manager.num_kv_heads_per_layer[layer]
            for side in range(self.manager.kv_factor):
                unit = slot * self.manager.impl.layout.pools[pool].offset_scale + place * self.manager.kv_factor + side
                for head in range(heads):
                    first = (unit * heads + head) * tokens
                    if (words[first : first + tokens] != _values(mine, layer, side, head)).any():
                        self.contents.corrupt.append(f"a pinned block in {tier} does not hold block {number}")
                        return


def _unsigned(names: list[int]) -> npt.NDArray[np.uint64]:
    return np.array([name & 0xFFFFFFFFFFFFFFFF for name in names], np.uint64)


def _values(names: npt.NDArray[np.uint64], layer: int, side: int, head: int) -> Words:
    salt = (np.array([layer + 1, side + 1, head + 1], np.uint64) * PRIMES).sum(dtype=np.uint64)
    mixed = (names ^ salt) * PRIMES[0]
    found: Words = ((mixed >> np.uint64(32)) ^ mixed).astype(np.uint32) | np.uint32(1)
    return found
