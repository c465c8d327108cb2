"""The report as plain values that may be shared: no path, no host's or user's name."""

import getpass
import platform
import re
import socket
from collections.abc import Mapping
from typing import Any

from trtllm_kvfix import __version__, machine, native
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.tools.selfcheck import verdicts
from trtllm_kvfix.tools.selfcheck.steps import ARMS, IMPORT, SCENARIOS, Outcome

FORMAT = 1
_PATH = re.compile(r"(?<![\w.])/(?:[^\s/'\":;,()<>]+/)+([^\s/'\":;,()<>]*)")


def compose(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
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
        verdict, why = verdicts.judged(scenario, state, outcomes)
        arms = {arm: outcomes[f"{scenario.name}:{arm}"]._asdict() for arm in ARMS}
        report["scenarios"].append(
            {"name": scenario.name, "fix": scenario.fix_id, "verdict": verdict, "why": why, "arms": arms}
        )
    report["replaced_together"] = outcomes["replace:all"].seen
    report["problems"] = list(verdicts.problems(report, outcomes))
    anonymous: dict[str, Any] = _without_names(report)
    return anonymous


def _fix(fix_id: str, probe: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
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
