"""A token's keys and values are here a function of the tokens up to it and of the rank that holds them."""

from collections.abc import Iterator, Sequence

PRIME = 16777619
MASK = 0xFFFFFFFF


def values(tokens: Sequence[int], rank: int = 0) -> list[int]:
    """One word for each position; two prefixes that differ anywhere differ from there on, and so do two ranks."""
    return list(_values(tokens, rank))


def _values(tokens: Sequence[int], rank: int) -> Iterator[int]:
    value = 2166136261 + 2 * rank
    for token in tokens:
        value = ((value ^ (token + 1)) * PRIME) & MASK
        yield value | 1  # never what untouched memory holds


def next_token(tokens: Sequence[int]) -> int:
    return values(tokens)[-1] % 1000
