"""Two ranks of a pipeline. Micro batches of different requests are in flight at once."""

from dataclasses import replace
from typing import Any

from integration.upstream.scenarios import ALL, APART, PLAIN, SERVED, STAGING, Scenario

PIPELINE: dict[str, Any] = {"kind": "pp"}


def pipelines() -> list[Scenario]:
    """The first rank prepares the next micro batch while copies of an earlier one are pending, and so does the last."""
    variants = {
        "offsets": PLAIN,
        "pools": replace(PLAIN, heads=(1, 2), layers=4),
        "windows": replace(PLAIN, windows=(64, 16), layers=4),
        "chunks": replace(PLAIN, chunked=True, budget=8),
    }
    return [
        Scenario(f"pp-{name}", STAGING, True, shape, APART, mended=("D",), **PIPELINE)
        for name, shape in variants.items()
    ] + [
        Scenario("pp-served", ALL, True, PLAIN, SERVED, mended=("D",), **PIPELINE),
    ]
