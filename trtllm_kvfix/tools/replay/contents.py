"""Contents that requests leave in a cache, in a comparable form: prompts, and answers if the trace gives them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.tools.replay.engine import Workload

_Words = NDArray[np.uint64]
_Ints = NDArray[np.int64]


_SYMBOLS_AT_ONCE = 1 << 20  # as many are hashed together: fewer take longer, more take memory


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
            known = length if request.output_hash_ids is None else request.computed
            contents.append(Content(root, book.ids(index), book.tokens_per_hash_id, known, length))
            continue
        symbols = request.tokens
        if request.output_tokens is not None:
            symbols = np.concatenate((symbols, request.output_tokens[:-1]))
        contents.append(Content(root, symbols, 1, len(symbols), length))
    return contents


class Runs(NamedTuple):
    """Whole blocks that end in one symbol of a content, in the order of the contents.

    Two runs have one key where their contents are equal up to that symbol. Then the shorter run, of a content that ends
    there, is a beginning of the other.
    """

    keys: _Words  # sums of 64-bit hashes
    content: _Ints  # its index
    first: _Ints  # number of the first block
    blocks: _Ints


def runs_of(contents: Sequence[Content], tokens_per_block: int) -> Runs:
    parts: list[Runs] = []
    begin = symbols = 0
    for end, content in enumerate(contents, start=1):
        symbols += len(content.symbols)
        if symbols >= _SYMBOLS_AT_ONCE or end == len(contents):
            part = _runs_of_some(contents[begin:end], tokens_per_block)
            parts.append(part._replace(content=part.content + begin))
            begin, symbols = end, 0
    return Runs(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else _NO_RUNS


def _runs_of_some(contents: Sequence[Content], tokens_per_block: int) -> Runs:
    counts = np.array([len(content.symbols) for content in contents])
    starts = np.cumsum(counts) - counts
    content = np.repeat(np.arange(len(contents)), counts)
    place = np.arange(len(content)) - starts[content]
    symbols = np.concatenate([each.symbols for each in contents])
    words = _mixed(place.astype(np.uint64) << np.uint64(32) | symbols.astype(np.uint64))
    sums = np.cumsum(words, dtype=np.uint64)
    tokens_per_symbol = np.array([each.tokens_per_symbol for each in contents])[content]
    length = np.array([each.length for each in contents])[content]
    ended = np.minimum((place + 1) * tokens_per_symbol, length) // tokens_per_block  # blocks, up to each symbol
    first = np.minimum(place * tokens_per_symbol, length) // tokens_per_block
    at = np.flatnonzero(ended > first)
    origin = starts[content[at]]
    roots = np.array([each.root for each in contents], np.uint64)[content[at]]
    prefixes = sums[at] - sums[origin] + words[origin]
    return Runs(prefixes + _mixed(~roots), content[at], first[at], ended[at] - first[at])


def evened(runs: Runs) -> Runs:
    """The same blocks, in runs that have one length for each key: where lengths differ, each block is a run.

    The blocks of two runs that were cut are alike where they have the same number in them.
    """
    is_cut = _have_other_lengths(runs)
    pieces = np.where(is_cut, runs.blocks, 1)  # that each run becomes
    run = np.repeat(np.arange(len(pieces)), pieces)  # of each piece
    first_piece = np.cumsum(pieces) - pieces
    number = np.arange(len(run)) - first_piece[run]  # of each piece in its run
    return Runs(
        keys=runs.keys[run] + _mixed(number.astype(np.uint64)),
        content=runs.content[run],
        first=runs.first[run] + number,
        blocks=np.where(is_cut, 1, runs.blocks)[run],
    )


def _have_other_lengths(runs: Runs) -> NDArray[np.bool_]:
    """For each run, whether runs of its key have different numbers of blocks."""
    _, example, key = np.unique(runs.keys, return_index=True, return_inverse=True)
    is_unlike = runs.blocks != runs.blocks[example[key]]
    return np.bincount(key[is_unlike], minlength=len(example))[key] > 0


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


_NO_RUNS = Runs(np.empty(0, np.uint64), *(np.empty(0, np.int64) for _ in range(3)))
