"""Scenarios on the stand-in: upstream alone is wrong where a fix is needed, and right with it."""

import sys
from typing import Any

import pytest

from tests.overlay.upstream_double import ROOT
from tests.standin.fixture import STANDIN, VARIANTS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.tools.selfcheck import parent, report, steps

LIMIT_S = 120


def checked(monkeypatch: pytest.MonkeyPatch, variant: str, child: str = "child") -> dict[str, Any]:
    monkeypatch.setenv("STANDIN_VARIANT", variant)
    monkeypatch.setenv("PYTHONPATH", f"{STANDIN}:{STANDIN / 'with_nixl'}:{ROOT}")
    command = (sys.executable, "-m", f"tests.tools.selfcheck.{child}")
    return report.compose(parent.run(steps.names(), limit_s=LIMIT_S, child=command))


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
        if states[each["fix"]] is not State.NEEDED:
            assert each["verdict"] == ("skipped" if states[each["fix"]] is State.NOT_APPLICABLE else "holds")
            continue
        # From B2 on, only what has been computed is stored, and nothing that Python sees tells.
        alone = "right" if each["name"] == "chunks-shared" and variant not in ("A", "B") else "wrong"
        assert each["verdict"] == "holds"
        assert each["arms"]["off"]["result"] == alone
        assert each["arms"]["only"]["result"] == each["arms"]["all"]["result"] == "right"


def test_a_fix_that_stages_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(monkeypatch, "B", "broken_child")
    assert verdicts(found) == {
        "offsets-v1": "fails",
        "offsets-v2": "holds",
        "chunks-shared": "holds",
        "admission-order": "holds",
    }
    offered = [problem.partition(":")[0] for problem in found["problems"]]
    assert offered == ["self-test", "offsets-v1 fails"]


def test_a_build_that_nobody_knows_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(monkeypatch, "mangled")
    assert set(verdicts(found).values()) == {"unproven"}
    assert found["problems"][0].startswith("import wrong: unknown: staged-offsets-v1")
