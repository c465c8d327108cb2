"""Crowds of requests for the native manager, in scenarios and in random loads."""

import random

from integration.upstream.arrivals import Arrival
from integration.upstream.server import Shape

ERAS = ("S", "D")
LONGEST = 30
STEMS = [list(range(1000 * stem, 1000 * stem + LONGEST)) for stem in range(3)]
WIDE = Shape(blocks=48, heads=(1, 2), layers=4, max_batch_size=6)


def crowd(seed: int, count: int = 40, longest_answer: int = 7) -> tuple[tuple[Arrival, ...], dict[int, list[int]]]:
    """Prompts that share prefixes, some of them inside a block; some are cancelled."""
    chance = random.Random(seed)
    arrivals: list[Arrival] = []
    cancels: dict[int, list[int]] = {}
    for number in range(1, count + 1):
        stem = chance.choice(STEMS)
        own = [10_000 * number + each for each in range(chance.randrange(1, 6))]
        at = chance.randrange(count)
        arrivals.append(
            Arrival(number, stem[: chance.randrange(0, LONGEST)] + own, chance.randrange(1, longest_answer + 1), at=at)
        )
        if chance.random() < 0.1:
            cancels.setdefault(at + chance.randrange(1, 4), []).append(number)
    return tuple(arrivals), cancels
