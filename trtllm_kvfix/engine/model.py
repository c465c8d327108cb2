"""A transformer: its weights and its forward pass. The caller decides where keys and values lie.

Everything is written once for numpy and torch, whose functions share their names. Weights are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # of numpy, or of torch
# (layer, queries, keys, values) -> what each query has read; keys and values are those of the tokens being computed.
Attention: TypeAlias = Callable[[int, Array, Array, Array], Array]


@dataclass(frozen=True)
class Layer:
    query: Array  # [width, heads * head size]
    key: Array  # [width, KV heads * head size]
    value: Array
    out: Array  # [heads * head size, width]
    rotary: bool
    up: Array | None = None  # of the MLP
    down: Array | None = None


@dataclass(frozen=True)
class Model:
    embedding: Array  # [vocabulary, width]
    layers: tuple[Layer, ...]
    unembedding: Array  # [width, vocabulary]
    adapters_in: Array  # [adapters, width, rank]: LoRA on the last hidden state; adapter 0 is none
    adapters_out: Array  # [adapters, rank, width]
    cosines: Array  # [positions, half a head]
    sines: Array
    positions: Array | None  # [positions, width], added to embeddings
    kv_heads: int
    head_size: int
    normed: bool

    def on(self, move: Callable[[Array], Array]) -> "Model":
        """The same with other arrays, such as torch's on a GPU."""

        def moved(each: Any) -> Any:
            if isinstance(each, np.ndarray):
                return move(each)
            if isinstance(each, tuple):
                return tuple(moved(one) for one in each)
            return (
                replace(each, **{f.name: moved(getattr(each, f.name)) for f in fields(each)})
                if isinstance(each, Layer)
                else each
            )

        return replace(self, **{f.name: moved(getattr(self, f.name)) for f in fields(self)})

    def hidden(self, xp: Any, tokens: Array, positions: Array, attention: Attention) -> Array:
        """[tokens, width], behind the last layer."""
        x = self.embedding[tokens]
        if self.positions is not None:
            x = x + self.positions[positions]
        for number, layer in enumerate(self.layers):
            x = x + self._attended(xp, number, layer, self._norm(xp, x), positions, attention)
            if layer.up is not None:
                x = x + xp.maximum(self._norm(xp, x) @ layer.up, xp.zeros_like(x[:1, :1])) @ layer.down
        return self._norm(xp, x)

    def logits(self, hidden: Array, adapters: Array) -> Array:
        """[rows, vocabulary]; each row by its adapter."""
        low = hidden[:, None] @ self.adapters_in[adapters]
        adapted = hidden + (low @ self.adapters_out[adapters])[:, 0]
        return adapted @ self.unembedding

    def _attended(self, xp: Any, number: int, layer: Layer, x: Array, positions: Array, attention: Attention) -> Array:
        queries, keys, values = (self._heads(x @ weights) for weights in (layer.query, layer.key, layer.value))
        if layer.rotary:
            queries, keys = self._rotated(xp, queries, positions), self._rotated(xp, keys, positions)
        read = attention(number, queries, keys, values)
        return read.reshape(len(x), -1) @ layer.out

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.head_size)

    def _rotated(self, xp: Any, x: Array, positions: Array) -> Array:
        half = self.head_size // 2
        cos, sin = self.cosines[positions][:, None], self.sines[positions][:, None]
        a, b = x[..., :half], x[..., half:]
        return xp.concatenate((a * cos - b * sin, a * sin + b * cos), -1)

    def _norm(self, xp: Any, x: Array) -> Array:
        return x / xp.sqrt((x * x).mean(-1)[:, None] + 1e-6) if self.normed else x


def attend(xp: Any, queries: Array, keys: Array, values: Array, seen: Array) -> Array:
    """[n, tokens, heads, size] over [n, length, KV heads, size]; seen: [n, tokens, length], what may be looked at."""
    n, tokens, heads, size = queries.shape
    groups = keys.shape[2]
    grouped = queries.reshape(n, tokens, groups, heads // groups, size).swapaxes(1, 2).reshape(n, groups, -1, size)
    by_group = keys.swapaxes(1, 2)
    scores = (grouped @ by_group.swapaxes(2, 3)).reshape(n, groups, tokens, heads // groups, -1) * size**-0.5
    scores = xp.where(seen[:, None, :, None], scores, -xp.inf)
    weights = xp.exp(scores - xp.amax(scores, -1)[..., None])
    weights = weights / weights.sum(-1)[..., None]
    read = weights.reshape(n, groups, -1, scores.shape[-1]) @ values.swapaxes(1, 2)
    return read.reshape(n, groups, tokens, -1, size).swapaxes(1, 2).reshape(n, tokens, heads, size)


def rotary(positions: int, head_size: int) -> tuple[Array, Array]:
    """Cosines and sines, as usual."""
    rates = 10000.0 ** -(np.arange(head_size // 2) / (head_size // 2))
    angles = np.arange(positions)[:, None] * rates
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
