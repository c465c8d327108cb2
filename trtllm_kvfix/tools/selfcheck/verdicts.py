"""Verdicts: of a scenario from its arms together, and of the whole report."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_kvfix.hazards.hazard import Scenario
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.tools.selfcheck.steps import ARMS, IMPORT, Outcome

HOLDS, FAILS, UNPROVEN, SKIPPED = "holds", "fails", "unproven", "skipped"
ON_ANY_MACHINE = (IMPORT, "self-test", "replace")


def judged(scenario: Scenario, state: str | None, outcomes: Mapping[str, Outcome]) -> tuple[str, str]:
    """(verdict, why). A fix is proved where upstream alone is wrong and is right with it."""
    arms = {arm: outcomes[f"{scenario.name}:{arm}"] for arm in ARMS}
    off = arms["off"]
    bad = [f"{arm}: {arms[arm].said}" for arm in ("only", "all") if arms[arm].result in ("wrong", "died")]
    if bad and (state == State.NEEDED.value or off.result in ("right", "skipped")):
        return FAILS, bad[0]
    unseen = [f"{arm}: {each.said}" for arm, each in arms.items() if each.result == "unavailable"]
    if state == State.NOT_APPLICABLE.value or (state == State.FIXED_UPSTREAM.value and off.result == "skipped"):
        return SKIPPED, _not_needed(off)
    if unseen or state not in (State.NEEDED.value, State.FIXED_UPSTREAM.value):
        return UNPROVEN, (*unseen, "the probe cannot tell whether the fix is needed")[0]
    if state == State.NEEDED.value:
        return _needed(scenario, arms)
    if off.result != "right":
        return FAILS, f"upstream is taken to have fixed it, and alone: {off.said}"
    return HOLDS, "upstream alone is right"


def _not_needed(off: Outcome) -> str:
    if off.result == "skipped":
        return off.said
    if off.result == "unavailable":
        return f"the fix is not needed here, and upstream alone was not seen: {off.said}"
    return "no fix of ours knows this build" + (f", which alone: {off.said}" if off.said else "")


def _needed(scenario: Scenario, arms: Mapping[str, Outcome]) -> tuple[str, str]:
    off = arms["off"]
    idle = [f"{arm}: {arms[arm].said or arms[arm].result}" for arm in ("only", "all") if arms[arm].result != "right"]
    if idle:
        return UNPROVEN, idle[0]
    if off.result == "wrong":
        return HOLDS, f"without the fix: {off.said}"
    if off.result == "right" and scenario.may_be_right:
        return HOLDS, "this build is right without the fix, too"
    return UNPROVEN, f"the hazard did not show without the fix: {off.said or off.result}"


def problems(report: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Reasons to exit with 1."""
    for name, outcome in outcomes.items():
        if name.partition(":")[0] in ON_ANY_MACHINE and outcome.result not in ("right", "skipped"):
            yield f"{name} {outcome.result}: {outcome.said}"
    for each in report["scenarios"]:
        if each["verdict"] in (FAILS, UNPROVEN):
            yield f"{each['name']} {each['verdict']}: {each['why']}"
