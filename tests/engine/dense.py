"""The reference: the same weights over the whole sequence at once, without a cache, pages, batches or chunks."""

from collections.abc import Sequence

import numpy as np

from trtllm_kvfix.engine.model import Array, Model, attend


def logits(model: Model, tokens: Sequence[int], adapter: int = 0) -> Array:
    """[vocabulary], behind the last token."""
    positions = np.arange(len(tokens))
    seen = (positions[None, :] <= positions[:, None])[None]

    def attention(_layer: int, queries: Array, keys: Array, values: Array) -> Array:
        return attend(np, queries[None], keys[None], values[None], seen)[0]

    hidden = model.hidden(np, np.array(tokens), positions, attention)
    return model.logits(hidden[-1:], np.array([adapter]))[0]


def answer(model: Model, prompt: Sequence[int], length: int, adapter: int = 0) -> tuple[list[int], float]:
    """Greedy, and the least margin between the best two tokens on the way."""
    tokens, margin = list(prompt), float("inf")
    for _ in range(length):
        found = logits(model, tokens, adapter)
        second, best = np.partition(found, -2)[-2:]
        margin = min(margin, float(best - second))
        tokens.append(int(found.argmax()))
    return tokens[len(prompt) :], margin
