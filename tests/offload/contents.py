"""What the keys and values of a token are here: a pure function of the tokens up to it."""

from collections.abc import Iterator, Sequence

PRIME = 16777619
MASK = 0xFFFFFFFF


def values(tokens: Sequence[int]) -> list[int]:
    """One word for each position; two prefixes that differ anywhere differ from there on."""
    return list(_values(tokens))


def _values(tokens: Sequence[int]) -> Iterator[int]:
    value = 2166136261
    for token in tokens:
        value = ((value ^ (token + 1)) * PRIME) & MASK
        yield value | 1  # never what untouched memory holds


def next_token(tokens: Sequence[int]) -> int:
    return values(tokens)[-1] % 1000
