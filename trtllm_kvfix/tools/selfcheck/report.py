"""The report as plain values that may be shared: no path, no host's or user's name."""

import getpass
import platform
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_kvfix import __version__, machine, native
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.tools.selfcheck.steps import ARMS, IMPORT, SCENARIOS, StepOutcome

HOLDS, FAILS, UNPROVEN, SKIPPED = "holds", "fails", "unproven", "skipped"
ON_ANY_MACHINE = (IMPORT, "self-test", "replace")


def judged(scenario: Scenario, state: str | None, outcomes: Mapping[str, StepOutcome]) -> tuple[str, str]:
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


def _not_needed(off: StepOutcome) -> str:
    if off.result == "skipped":
        return off.said
    if off.result == "unavailable":
        return f"the fix is not needed here; not tested without it: {off.said}"
    return "no fix of ours knows this build" + (f", which alone: {off.said}" if off.said else "")


def _needed(scenario: Scenario, arms: Mapping[str, StepOutcome]) -> tuple[str, str]:
    off = arms["off"]
    idle = [f"{arm}: {arms[arm].said or arms[arm].result}" for arm in ("only", "all") if arms[arm].result != "right"]
    if idle:
        return UNPROVEN, idle[0]
    if off.result == "wrong":
        return HOLDS, f"without the fix: {off.said}"
    if off.result == "right" and scenario.may_be_right:
        return HOLDS, "this build is right without the fix, too"
    return UNPROVEN, f"the hazard did not show without the fix: {off.said or off.result}"


def problems(report: Mapping[str, Any], outcomes: Mapping[str, StepOutcome]) -> Iterator[str]:
    """Reasons to exit with 1."""
    for name, outcome in outcomes.items():
        if name.partition(":")[0] in ON_ANY_MACHINE and outcome.result not in ("right", "skipped"):
            yield f"{name} {outcome.result}: {outcome.said}"
    for each in report["scenarios"]:
        if each["verdict"] in (FAILS, UNPROVEN):
            yield f"{each['name']} {each['verdict']}: {each['why']}"


FORMAT = 1
_PATH = re.compile(r"(?<![\w.])/(?:[^\s/'\":;,()<>]+/)+([^\s/'\":;,()<>]*)")


def compose(outcomes: Mapping[str, StepOutcome]) -> dict[str, Any]:
    seen = outcomes[IMPORT].seen or {}
    probes = seen.get("probes", {})
    found = machine.describe()
    report: dict[str, Any] = {
        "format": FORMAT,
        "package": __version__,
        "extension": native.build_info(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "gpu": found["gpu"],
            "driver": found["driver"],
        },
        "tensorrt_llm": {key: seen.get(key) for key in ("version", "variant", "torch", "python")},
        "fixes": [_fix(fix.id, probes.get(fix.id, {}), outcomes) for fix in ALL],
        "scenarios": [],
    }
    for scenario in SCENARIOS:
        state = probes.get(scenario.fix_id, {}).get("state")
        verdict, why = judged(scenario, state, outcomes)
        arms = {arm: outcomes[f"{scenario.name}:{arm}"]._asdict() for arm in ARMS}
        report["scenarios"].append(
            {"name": scenario.name, "fix": scenario.fix_id, "verdict": verdict, "why": why, "arms": arms}
        )
    report["replaced_together"] = outcomes["replace:all"].seen
    report["problems"] = list(problems(report, outcomes))
    anonymous: dict[str, Any] = _without_names(report)
    return anonymous


def _fix(fix_id: str, probe: Mapping[str, str], outcomes: Mapping[str, StepOutcome]) -> dict[str, Any]:
    self_test, replaced = outcomes[f"self-test:{fix_id}"], outcomes[f"replace:{fix_id}"]
    return {
        "id": fix_id,
        "state": probe.get("state"),
        "reason": probe.get("reason"),
        "self_test": f"{self_test.result} {self_test.said}".rstrip(),
        "replaced": f"{replaced.result} {replaced.said}".rstrip(),
        "seams": (replaced.seen or {}).get("seams", []),
    }


def _without_names(value: Any) -> Any:
    """Messages of errors name files, and some of them machines and users."""
    if isinstance(value, dict):
        return {key: _without_names(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_names(each) for each in value]
    return anonymous(value) if isinstance(value, str) else value


def anonymous(text: str) -> str:
    text = _PATH.sub(r"…/\1", text)
    for name, word in ((socket.gethostname(), "HOST"), (_user(), "USER")):
        if name:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a container's user without an entry
