"""A scenario of the native manager under a crowd. Without the overlay upstream's own books serve it."""

from typing import Any

from integration.upstream.native_crowds import ERAS, crowd
from integration.upstream.scenarios import ALL, Scenario
from integration.upstream.server import Shape


def crowded(name: str, shape: Shape, seed: int, **more: Any) -> Scenario:
    longest = more.pop("longest_answer", 20 if shape.policy == "MAX_UTILIZATION" else 7)
    arrivals, cancels = crowd(seed, more.pop("count", 40), longest_answer=longest)
    more = {"mended": ("D",), "eras": ERAS, "kind": "native"} | more
    return Scenario(name, ALL, shape.overlap, shape, arrivals, cancels, **more)
