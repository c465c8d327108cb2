"""A model with random weights: its answers make no sense, but every wrong key or value changes them."""

import numpy as np

from trtllm_kvfix.engine.model import Array, Layer, Model, rotary

SHARP = 3.0  # how much more than usual attention distinguishes tokens: an answer depends on tokens far back
RANK = 4  # of an adapter


def random_model(
    seed: int,
    *,
    positions: int,
    vocabulary: int = 256,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 16,
    adapters: int = 3,
) -> Model:
    random = np.random.Generator(np.random.PCG64(seed))

    def weights(*shape: int, scale: float = 1.0) -> Array:
        drawn = random.standard_normal(shape, np.float32)
        return (drawn * (scale / shape[-2] ** 0.5)).astype(np.float32)

    def layer() -> Layer:
        return Layer(
            query=weights(width, heads * head_size, scale=SHARP),
            key=weights(width, kv_heads * head_size),
            value=weights(width, kv_heads * head_size),
            out=weights(heads * head_size, width, scale=SHARP),
            rotary=True,
            up=weights(width, 2 * width),
            down=weights(2 * width, width),
        )

    adapters_in, adapters_out = weights(adapters, width, RANK), weights(adapters, RANK, width, scale=RANK)
    adapters_in[0] = 0  # none
    cosines, sines = rotary(positions, head_size)
    return Model(
        embedding=weights(vocabulary, width, scale=vocabulary**0.5),
        layers=tuple(layer() for _ in range(layers)),
        unembedding=weights(width, vocabulary),
        adapters_in=adapters_in,
        adapters_out=adapters_out,
        cosines=cosines,
        sines=sines,
        positions=None,
        kv_heads=kv_heads,
        head_size=head_size,
        normed=True,
    )
