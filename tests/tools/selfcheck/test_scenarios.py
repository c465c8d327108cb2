"""Scenarios on the stand-in: upstream alone is wrong where a fix is needed, and right with it."""

import sys
from typing import Any

import pytest

from tests.overlay.upstream_double import ROOT
from tests.standin.fixture import STANDIN, VARIANTS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.fix import Fix, State
from trtllm_kvfix.tools.selfcheck import report, steps
from trtllm_kvfix.tools.selfcheck.report import judged
from trtllm_kvfix.tools.selfcheck.steps import SCENARIOS, StepOutcome

LIMIT_S = 120
# Builds in which this scenario has nothing to show: they lack what it is about, or need a model for it.
NOTHING_TO_SHOW = {
    "budget": "A B",
    "pins": "A B B2 D F",
    "graph-tables": "A B B2 C",
    "prefix-passes": "A B B2 C D",
    "prefix-passes-part": "A B B2 C D",
    "listener": "A B B2 D",
}


def taken(
    monkeypatch: pytest.MonkeyPatch, variant: str, names: list[str], child: str = "child"
) -> dict[str, StepOutcome]:
    monkeypatch.setenv("STANDIN_VARIANT", variant)
    monkeypatch.setenv("PYTHONPATH", f"{STANDIN}:{STANDIN / 'with_nixl'}:{ROOT}")
    command = (sys.executable, "-m", f"tests.tools.selfcheck.{child}")
    return steps.run(names, limit_s=LIMIT_S, child=command)


def checked(monkeypatch: pytest.MonkeyPatch, variant: str, child: str = "child") -> dict[str, Any]:
    return report.compose(taken(monkeypatch, variant, steps.names(), child))


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["verdict"] for each in found["scenarios"]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_fix_holds_on_every_build(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    found = checked(monkeypatch, variant)
    assert found["problems"] == []
    assert found["tensorrt_llm"]["variant"] == variant
    states = {fix.id: fix.expected[variant] for fix in ALL}
    assert {each["id"]: each["state"] for each in found["fixes"]} == {key: each.value for key, each in states.items()}
    for fix in found["fixes"]:
        assert fix["self_test"] == "right"
        needed = states[fix["id"]] is State.NEEDED
        assert (fix["replaced"] == "right" and fix["seams"] != []) is needed
    for each in found["scenarios"]:
        state = states[each["fix"]]
        if variant in NOTHING_TO_SHOW.get(each["name"], "").split():
            assert state is not State.NEEDED
            assert (each["verdict"], each["arms"]["off"]["result"]) == ("skipped", "skipped")
            assert each["why"] == each["arms"]["off"]["said"] != ""
            continue
        if state is not State.NEEDED:
            assert each["verdict"] == ("skipped" if state is State.NOT_APPLICABLE else "holds")
            continue
        # From B2 on, only computed blocks are stored, and Python sees no sign of it.
        alone = "right" if each["name"] == "chunks-shared" and variant not in ("A", "B") else "wrong"
        assert each["verdict"] == "holds"
        assert each["arms"]["off"]["result"] == alone
        assert each["arms"]["only"]["result"] == each["arms"]["all"]["result"] == "right"


def test_every_fix_has_a_scenario_that_shows_it_somewhere() -> None:
    assert {scenario.fix_id for scenario in SCENARIOS} == {fix.id for fix in ALL}
    for scenario in SCENARIOS:
        needed = {variant for variant, state in fix_of(scenario).expected.items() if state is State.NEEDED}
        assert needed - set(NOTHING_TO_SHOW.get(scenario.name, "").split())


def fix_of(scenario: Scenario) -> Fix:
    return next(fix for fix in ALL if fix.id == scenario.fix_id)


@pytest.mark.parametrize(
    ("way", "name", "variant"),
    [
        ("staged-offsets-v2", "offsets-v2", "C"),
        ("staged-offsets-v2", "offsets-v2", "F"),
        ("computed-blocks", "chunks-shared", "B"),
        ("connector-prefixes behind a match", "prefix-passes", "F"),
        ("connector-prefixes in a block", "prefix-passes-part", "F"),
        ("partial-copies", "partial-copies", "A"),
        ("partial-copies", "partial-copies", "B2"),
        ("batched-admission", "admission-order", "B2"),
        ("token-budget", "budget", "B2"),
        ("token-budget", "budget", "C"),
        ("token-budget", "budget", "F"),
        ("concurrent-pins", "pins", "C"),
        ("input-copy-fence before scheduling", "inputs", "A"),
        ("input-copy-fence before scheduling", "inputs", "C"),
        ("input-copy-fence in a pipeline", "inputs", "D"),
        ("input-copy-fence in a pipeline", "inputs", "F"),
        ("input-copy-fence before inputs", "inputs", "A"),
        ("input-copy-fence before inputs", "inputs", "C"),
        ("graph-inputs", "graph-tables", "D"),
        ("graph-inputs", "graph-tables", "F"),
        ("nixl-listener", "listener", "C"),
    ],
)
def test_a_fix_that_does_nothing_is_found_out(
    monkeypatch: pytest.MonkeyPatch, way: str, name: str, variant: str
) -> None:
    scenario = next(each for each in SCENARIOS if each.name == name)
    monkeypatch.setenv("BROKEN", way)
    arms = [f"{name}:{arm}" for arm in steps.ARMS]
    outcomes = taken(monkeypatch, variant, arms, "broken_child")
    assert {arm: outcomes[arm].result for arm in arms} == dict.fromkeys(arms, "wrong")
    verdict, why = judged(scenario, fix_of(scenario).expected[variant].value, outcomes)
    assert (verdict, why) == ("fails", f"only: {outcomes[arms[1]].said}")


def test_a_fix_that_stages_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "staged-offsets-v1")
    found = checked(monkeypatch, "B", "broken_child")
    fails = {name for name, verdict in verdicts(found).items() if verdict not in ("holds", "skipped")}
    assert fails == {"offsets-v1"} and verdicts(found)["offsets-v1"] == "fails"
    offered = [problem.partition(":")[0] for problem in found["problems"]]
    assert offered == ["self-test", "offsets-v1 fails"]


def test_a_build_that_nobody_knows_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(monkeypatch, "mangled")
    assert set(verdicts(found).values()) == {"unproven"}
    assert found["problems"][0].startswith("import wrong: unknown: staged-offsets-v1")
