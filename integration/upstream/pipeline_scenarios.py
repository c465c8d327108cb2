"""Two ranks of a pipeline. Micro batches of different requests are in flight at once."""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.scenarios import (
    ALL,
    APART,
    BUDGET,
    PLAIN,
    SERVED,
    STAGING,
    Scenario,
    believes,
    prompt,
)

PIPELINE: dict[str, Any] = {"kind": "pp"}


def pipelines() -> list[Scenario]:
    """The first rank prepares the next micro batch while copies of an earlier one are pending, and so does the last."""
    variants = {
        "offsets": PLAIN,
        "pools": replace(PLAIN, heads=(1, 2), layers=4),
        "windows": replace(PLAIN, windows=(64, 16), layers=4),
        "chunks": replace(PLAIN, chunked=True, budget=8),
    }
    two = (Arrival(1, prompt(0, 12), 3), Arrival(2, prompt(100, 12), 3))
    same = (Arrival(1, prompt(0, 40), 2), Arrival(2, prompt(0, 40), 2, at=1))
    over: dict[str, Any] = {
        "prepare": believes({2: 8}),
        "fails": (1, 2),
        "dies_of": "NoneType",
    }
    narrow = replace(PLAIN, budget=16)
    return [
        *(
            Scenario(f"pp-{name}", STAGING, True, shape, APART, mended=("D",), **PIPELINE)
            for name, shape in variants.items()
        ),
        Scenario("pp-served", ALL, True, PLAIN, SERVED, mended=("D",), **PIPELINE),
        # The second comes while the first is in the middle of the prompt that they share.
        Scenario(
            "pp-chunks-shared",
            ALL,
            True,
            replace(PLAIN, chunked=True, budget=16, chunk_max=8),
            same,
            mended=("D",),
            **PIPELINE,
        ),
        # A batch that one rank has decided stays as it is, and ends the loop as it does without us.
        Scenario("pp-budget", BUDGET, False, narrow, two, **over, eras=("D",), **PIPELINE),
        Scenario("pp-budget-leaking", BUDGET, False, narrow, two, **over, eras=("C",), leaks=True, **PIPELINE),
    ]
