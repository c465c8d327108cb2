"""Scenarios of input preparation: copies of the inputs, draft tokens, padding and dummies, step copies, LoRA tables."""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.input_server import InputShape
from integration.upstream.scenarios import ALL, STAGING_V2, Scenario, prompt

FENCE = "input-copy-fence"
TABLES = "graph-inputs"
# Whose excerpts hold `_prepare_tp_inputs` whole.
ERAS = ("S", "B2", "C")
APART = (Arrival(1, prompt(0, 10), 5), Arrival(2, prompt(100, 11), 6, at=1), Arrival(3, prompt(200, 7), 4, at=3))
OVERLAP = InputShape()
PLAIN = InputShape(overlap=False)


def scenarios() -> list[Scenario]:
    served: dict[str, Any] = {"kind": "inputs", "eras": ERAS}
    newest: dict[str, Any] = {"eras": ("N",)}
    return [
        Scenario("offsets-v2-own-launch", STAGING_V2, True, OVERLAP, APART, kind="v2-own-launch", **newest),
        Scenario("offsets-v2-step-copies", STAGING_V2, True, OVERLAP, APART, kind="v2-step-copies", **newest),
        Scenario("lora-tables", TABLES, True, OVERLAP, APART, kind="lora-tables", **newest),
        Scenario("inputs-overlap", FENCE, True, OVERLAP, APART, **served),
        Scenario("inputs-plain-loop", FENCE, False, PLAIN, APART, **served),
        Scenario("inputs-graphs", FENCE, True, replace(OVERLAP, graphs=(1, 2, 4)), APART, **served),
        Scenario("inputs-graphs-plain-loop", ALL, False, replace(PLAIN, graphs=(1, 2, 4)), APART, **served),
    ]
