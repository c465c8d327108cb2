"""Needs TensorRT-LLM, and a CUDA GPU for the scenarios: every step of `trtllm-kvfix selfcheck` is a test here."""

import pytest

from trtllm_kvfix.hazards import build
from trtllm_kvfix.hazards.ground import Ground, Unavailable
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.tools.selfcheck import report, steps
from trtllm_kvfix.tools.selfcheck.steps import SCENARIOS

pytest.importorskip("tensorrt_llm", reason="needs TensorRT-LLM")


@pytest.fixture(scope="module")
def up() -> Upstream:
    return build.imported()


@pytest.mark.parametrize("name", [name for name in steps.names() if name.partition(":")[0] in report.ON_ANY_MACHINE])
def test_step(name: str) -> None:
    outcome = steps.take(name, Ground)
    assert outcome.result in ("right", "skipped"), outcome.said


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, up: Upstream) -> None:
    try:
        Ground()
    except Unavailable as error:
        pytest.skip(str(error))
    names = [f"{scenario.name}:{arm}" for arm in steps.ARMS]
    outcomes = {name: steps.take(name, Ground) for name in names}
    verdict, why = report.judged(scenario, steps.state_of(scenario.fix_id, up).value, outcomes)
    assert verdict in (report.HOLDS, report.SKIPPED), why
