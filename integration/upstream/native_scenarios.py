"""Upstream's loops over our block manager: the memory must hold what the tokens say, whatever ends when.

Without the overlay upstream's own books run, and in S its overlap loop overwrites the offsets of a pending copy (H1).
"""

from dataclasses import replace
from typing import Any

from integration.upstream.native_crowds import ERAS, WIDE, crowd
from integration.upstream.scenarios import ALL, SERVED, Scenario
from integration.upstream.server import Shape


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
