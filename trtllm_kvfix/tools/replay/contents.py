"""What requests leave in a cache, in a form that can be compared: prompts, and answers where the trace gives them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.tools.replay.engine import Workload

_Words = NDArray[np.uint64]


class Content(NamedTuple):
    """Each symbol stands for `tokens_per_symbol` tokens, the last for fewer; different ones differ in the first."""

    root: int  # contents of different roots have nothing in common
    symbols: NDArray[np.int32]
    tokens_per_symbol: int
    length: int  # tokens
    prompt_length: int


def contents_of(workload: Workload, indices: Iterable[int]) -> list[Content]:
    roots: dict[object, int] = {}
    contents = []
    for index in indices:
        request, book = workload.requests[index], workload.book
        kind = request.tokens is None, request.lora_id, type(request.salt), request.salt
        root = roots.setdefault(kind, len(roots))
        length = request.input_length
        if request.tokens is None:
            # An answer that is not given repeats nothing, so it is no part of what can be found.
            contents.append(Content(root, book.ids(index), book.tokens_per_hash_id, length, length))
            continue
        symbols = request.tokens
        if request.output_tokens is not None:
            symbols = np.concatenate((symbols, request.output_tokens[:-1]))
        contents.append(Content(root, symbols, 1, len(symbols), length))
    return contents


def keys_of(content: Content, tokens_per_block: int) -> _Words:
    """A number for each whole block, equal where the block and all before it are: a sum of 64-bit hashes."""
    positions = np.arange(len(content.symbols), dtype=np.uint64)
    words = _mixed(positions << np.uint64(32) | content.symbols.astype(np.uint64))
    prefixes = np.cumsum(words, dtype=np.uint64)
    blocks = np.arange(content.length // tokens_per_block, dtype=np.int64)
    last_symbols = ((blocks + 1) * tokens_per_block - 1) // content.tokens_per_symbol
    # Several blocks may end in one symbol, so each adds its number; and roots are apart.
    places = blocks.astype(np.uint64) << np.uint64(32) | np.uint64(content.root)
    keys: _Words = prefixes[last_symbols] + _mixed(~places)
    return keys


def common_lengths(contents: Sequence[Content]) -> NDArray[np.int64]:
    """For each content, the length of the prefix that its prompt shares with some content before it, in tokens.

    In sorted order the one that has most in common with another stands beside it. Taking out the latest first, those
    that are left beside each one came before it.
    """
    order = sorted(range(len(contents)), key=lambda index: _sort_key(contents[index]))
    before = {right: left for left, right in pairwise(order)}
    after = dict(pairwise(order))
    lengths = np.zeros(len(contents), np.int64)
    for index in reversed(range(len(contents))):
        left, right = before.pop(index, None), after.pop(index, None)
        if left is not None:
            after.pop(left)
        if right is not None:
            before.pop(right)
        if left is not None and right is not None:
            after[left], before[right] = right, left
        beside = (contents[other] for other in (left, right) if other is not None)
        lengths[index] = max((_common(contents[index], other) for other in beside), default=0)
    return lengths


def _sort_key(content: Content) -> tuple[int, bytes, int]:
    return content.root, content.symbols.astype(">i4").tobytes(), content.length


def _common(content: Content, other: Content) -> int:
    if content.root != other.root:
        return 0
    shorter = min(len(content.symbols), len(other.symbols))
    differ = content.symbols[:shorter] != other.symbols[:shorter]
    symbols = int(differ.argmax()) if differ.any() else shorter
    return min(symbols * content.tokens_per_symbol, content.prompt_length, other.length)


def _mixed(words: _Words) -> _Words:
    """Steele's SplitMix64: every bit of the input reaches every bit of the output."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
