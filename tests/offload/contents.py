"""A token's keys and values are here a function of the tokens up to it, of their rank and of the weights."""

from collections.abc import Sequence

PRIME = 16777619
MASK = 0xFFFFFFFF


def values(tokens: Sequence[int], rank: int = 0) -> list[int]:
    """One word for each position; two prefixes that differ anywhere differ from there on, and so do two ranks."""
    found: list[int] = []
    extend(found, tokens, rank)
    return found


def extend(found: list[int], tokens: Sequence[int], rank: int = 0, weights: int = 0) -> None:
    """Computes what the values of `tokens` lack, with these weights, whatever those before were computed with."""
    value = found[-1] if found else 2166136261 + 2 * rank
    for token in tokens[len(found) :]:
        value = (((value ^ (token + 1)) + 2 * weights) * PRIME & MASK) | 1  # never what untouched memory holds
        found.append(value)


def next_token(tokens: Sequence[int]) -> int:
    return values(tokens)[-1] % 1000
