"""Upstream's loops over our block manager: the memory must hold what the tokens say, whatever ends when.

Without the overlay upstream's own books run, and in S its overlap loop overwrites the offsets of a pending copy (H1).
"""

import random
from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.scenarios import ALL, SERVED, Scenario, prompt
from integration.upstream.server import Shape

ERAS = ("S", "D")
WIDE = Shape(blocks=48, heads=(1, 2), layers=4, max_batch_size=6)


def crowd(seed: int, count: int = 40, longest: int = 30) -> tuple[tuple[Arrival, ...], dict[int, list[int]]]:
    """Prompts that share prefixes, some of them inside a block; some are cancelled."""
    chance = random.Random(seed)
    stems = [prompt(1000 * stem, longest) for stem in range(3)]
    arrivals: list[Arrival] = []
    cancels: dict[int, list[int]] = {}
    for number in range(1, count + 1):
        stem = chance.choice(stems)
        own = prompt(10_000 * number, chance.randrange(1, 6))
        at = chance.randrange(count)
        arrivals.append(Arrival(number, stem[: chance.randrange(0, longest)] + own, chance.randrange(1, 8), at=at))
        if chance.random() < 0.1:
            cancels.setdefault(at + chance.randrange(1, 4), []).append(number)
    return tuple(arrivals), cancels


def _crowded(name: str, shape: Shape, seed: int, **more: Any) -> Scenario:
    arrivals, cancels = crowd(seed)
    more |= {"mended": ("D",), "eras": ERAS, "kind": "native"}
    return Scenario(name, ALL, shape.overlap, shape, arrivals, cancels, **more)


def natives() -> list[Scenario]:
    small = replace(WIDE, blocks=18)
    chunks = replace(small, chunked=True, chunk_max=8, budget=16)
    return [
        Scenario("native-served", ALL, True, WIDE, SERVED, mended=("D",), eras=ERAS, kind="native"),
        _crowded("native-crowd", WIDE, 1, reused_min=60),
        _crowded("native-crowd-small", small, 2, moves_min=1),
        _crowded("native-crowd-chunks", chunks, 3),
        _crowded("native-crowd-plain-loop", replace(small, overlap=False), 4),
        _crowded("native-crowd-host", replace(small, host_blocks=24), 5, moves_min=10),
        _crowded("native-crowd-no-reuse", replace(small, reuse=False), 6),
    ]
