"""The arms of a scenario make a verdict together."""

import pytest

from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.tools.selfcheck.report import judged
from trtllm_kvfix.tools.selfcheck.steps import ARMS, Result, StepOutcome

PLAIN = Scenario("it", "a-fix", lambda *_: None)
LENIENT = Scenario("it", "a-fix", lambda *_: None, may_be_right=True)


@pytest.mark.parametrize(
    ("scenario", "state", "arms", "verdict"),
    [
        (PLAIN, "needed", ("wrong", "right", "right"), "holds"),
        (PLAIN, "needed", ("died", "right", "right"), "unproven"),
        (PLAIN, "needed", ("right", "right", "right"), "unproven"),
        (LENIENT, "needed", ("right", "right", "right"), "holds"),
        (LENIENT, "needed", ("right", "wrong", "right"), "fails"),
        (PLAIN, "needed", ("wrong", "wrong", "right"), "fails"),
        (PLAIN, "needed", ("wrong", "right", "died"), "fails"),
        (PLAIN, "needed", ("unavailable", "unavailable", "unavailable"), "unproven"),
        (PLAIN, "needed", ("wrong", "unavailable", "right"), "unproven"),
        (PLAIN, "fixed-upstream", ("right", "skipped", "right"), "holds"),
        (PLAIN, "fixed-upstream", ("wrong", "skipped", "wrong"), "fails"),
        (PLAIN, "fixed-upstream", ("right", "skipped", "wrong"), "fails"),
        (PLAIN, "fixed-upstream", ("unavailable", "skipped", "unavailable"), "unproven"),
        (PLAIN, "fixed-upstream", ("skipped", "skipped", "skipped"), "skipped"),
        (PLAIN, "fixed-upstream", ("skipped", "skipped", "wrong"), "fails"),
        (PLAIN, "not-applicable", ("skipped", "skipped", "skipped"), "skipped"),
        (PLAIN, "needed", ("skipped", "skipped", "skipped"), "unproven"),
        (PLAIN, "needed", ("skipped", "right", "right"), "unproven"),
        (PLAIN, "needed", ("wrong", "skipped", "skipped"), "unproven"),
        (PLAIN, "unknown", ("skipped", "skipped", "skipped"), "unproven"),
        (PLAIN, "not-applicable", ("wrong", "skipped", "wrong"), "skipped"),
        (PLAIN, "not-applicable", ("right", "skipped", "wrong"), "fails"),
        (PLAIN, "unknown", ("wrong", "skipped", "wrong"), "unproven"),
        (PLAIN, None, ("died", "died", "died"), "unproven"),
    ],
)
def test_verdict(scenario: Scenario, state: str | None, arms: tuple[Result, ...], verdict: str) -> None:
    outcomes = {f"it:{arm}": StepOutcome(result, "so") for arm, result in zip(ARMS, arms, strict=True)}
    assert judged(scenario, state, outcomes)[0] == verdict
