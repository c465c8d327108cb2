"""Scenarios of input preparation: copies of the inputs, draft tokens, padding and dummies, step copies, LoRA tables."""

from dataclasses import replace
from typing import Any

from integration.upstream.arrivals import Arrival
from integration.upstream.input_server import InputShape
from integration.upstream.scenarios import ALL, STAGING_V2, Scenario, prompt

FENCE = "input-copy-fence"
TABLES = "graph-inputs"
# Eras whose excerpts hold `_prepare_tp_inputs` whole.
ERAS = ("S", "B2", "C")
# Those whose first rank sends what it has scheduled.
PIPELINES = ("S", "C", "D", "N", "O")
APART = (Arrival(1, prompt(0, 10), 5), Arrival(2, prompt(100, 11), 6, at=1), Arrival(3, prompt(200, 7), 4, at=3))
DRAFTED = (Arrival(1, prompt(0, 9), 5), Arrival(2, prompt(100, 13), 3, at=2))
# Dummies are made of ones, too. What they leave behind must not be taken for the prefix of a request.
ONES = (Arrival(1, [1] * 10, 5), Arrival(2, [1] * 11 + [2], 6, at=1), Arrival(3, prompt(200, 7), 4, at=3))
OVERLAP = InputShape()
PLAIN = InputShape(overlap=False)


def scenarios() -> list[Scenario]:
    served: dict[str, Any] = {"kind": "inputs", "eras": ERAS}
    later: dict[str, Any] = {"kind": "inputs", "eras": (*ERAS, "D")}
    # A batch of two whose first request generates, when the second comes.
    drafted = replace(OVERLAP, draft_len=3, budget=16)
    unsaid: dict[str, Any] = {"kind": "inputs", "eras": ("C",)}
    newest: dict[str, Any] = {"eras": ("N", "O")}
    return [
        Scenario("offsets-v2-own-launch", STAGING_V2, True, OVERLAP, APART, kind="v2-own-launch", **newest),
        Scenario("offsets-v2-step-copies", STAGING_V2, True, OVERLAP, APART, kind="v2-step-copies", **newest),
        Scenario("lora-tables", TABLES, True, OVERLAP, APART, kind="lora-tables", **newest),
        # The drafts are on the device, and the requests' own lists are empty: each generation is four tokens.
        Scenario("drafts-on-device", ALL, True, replace(drafted, drafts=0, chunked=True), DRAFTED, **unsaid),
        Scenario("drafts-on-device-whole", ALL, True, replace(drafted, drafts=0), DRAFTED, **unsaid),
        # Lists of drafts that were never made, after a step without speculation: each generation is one token.
        Scenario("drafts-unused", ALL, True, replace(drafted, draft_len=0, drafts=3, batches_max=5), DRAFTED, **unsaid),
        # A prompt is not charged the drafts that its request says it has.
        Scenario("drafts-in-contexts", ALL, True, replace(drafted, budget=17, batches_max=5), DRAFTED, **unsaid),
        Scenario("dummies", ALL, False, replace(PLAIN, warm_up=9), ONES, **served),
        Scenario("dummies-overlap", ALL, True, replace(OVERLAP, warm_up=9, graphs=(1, 2, 4)), ONES, **served),
        Scenario("inputs-overlap", FENCE, True, OVERLAP, APART, mended=("D",), **later),
        Scenario("inputs-pipeline", FENCE, True, PLAIN, APART, kind="pp-inputs", eras=PIPELINES),
        Scenario("inputs-plain-loop", FENCE, False, PLAIN, APART, **later),
        # Tokens, drafts and lengths of the last step are gathered on the device.
        Scenario("inputs-drafts", FENCE, True, replace(OVERLAP, draft_len=3), APART, **served),
        Scenario("inputs-drafts-plain-loop", FENCE, False, replace(PLAIN, draft_len=3), APART, **served),
        Scenario("inputs-graphs", FENCE, True, replace(OVERLAP, graphs=(1, 2, 4)), APART, **served),
        Scenario("inputs-graphs-plain-loop", ALL, False, replace(PLAIN, graphs=(1, 2, 4)), APART, **served),
    ]
