"""Pages that show output of our own commands show what the commands print."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.claims.pages import ROOT, blocks, label
from tests.claims.rows import read as rows_of
from trtllm_kvfix.cli import main

DOCS = ROOT / "docs"


def test_replay_md_shows_what_the_command_prints() -> None:
    page = (DOCS / "replay.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```\n\$ trtllm-kvfix (replay [^\n]*)\n(.*?)```", page, re.DOTALL)
    printed = CliRunner().invoke(main, shlex.split(shown[0])).stdout
    assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in shown[1].splitlines()]


def test_engine_md_shows_what_the_demo_finds() -> None:
    report = json.loads(CliRunner().invoke(main, ["demo", "--device", "cpu", "--json"]).stdout)
    found: dict[str, list[object]] = {}
    for scene in report["scenes"]:
        answers = scene["control"]["answers"]
        wrong = sum(not answer["right"] for answer in answers)
        foreign = sum(answer["from_whom"] is not None for answer in answers)
        found[f"{scene['fix']} ({scene['hazard']})"] = [f"{wrong} of {len(answers)}", foreign]
        assert all(answer["right"] for answer in scene["fixed"]["answers"])
    (table,) = (block for block in blocks(DOCS / "engine.md") if "wrong answers | of them" in block.text)
    shown: dict[str, list[object]] = {}
    for line in table.text.splitlines()[2:]:
        name, _, answers_wrong, others = (part.strip() for part in line.strip("|").split("|"))
        shown[label(name)] = [answers_wrong, int(others.split(",")[0])]
    assert shown == found


def test_h10_md_shows_what_upstreams_own_filter_did() -> None:
    page = DOCS / "hazards" / "h10-step-prologue-trim.md"
    commit, steps = "54799f82", 7
    rows = [row for row in rows_of("upstream.csv") if row["commit"] == commit and row["scenario"].startswith("trim-")]
    assert f"commit {commit}" in page.read_text(encoding="utf-8")

    def seen(scenario: str, overlay: str) -> str:
        (row,) = (row for row in rows if (row["scenario"], row["overlay"]) == (scenario, overlay))
        if "StepPrologueTrimVerifyError" in row["remark"]:
            return "ended by upstream"
        wrong = re.match(r"wrong offsets \((\d+)\)", row["remark"])
        assert (wrong is None) == (row["result"] == "right")
        return f"{wrong[1] if wrong else 0} of {steps}"

    modes = {"trim on": "", "trim off": "off-", "trim in its check": "verify-"}
    found = {
        mode: [seen(f"trim-{part}{what}", "off") for what in ("index", "rewritten")] for mode, part in modes.items()
    }
    with_fix = {
        seen(f"trim-{part}{what}", overlay)
        for part in modes.values() for what in ("index", "rewritten") for overlay in ("only", "all")
    }  # fmt: skip
    assert len(with_fix) == 1
    found["staged-offsets-v2, in each of these modes"] = [*with_fix] * 2
    (table,) = (block for block in blocks(page) if "rewritten copy index" in block.text)
    lines = [[label(part) for part in line.strip("|").split("|")] for line in table.text.splitlines()[2:]]
    assert {name: cells for name, *cells in lines} == found


@pytest.fixture(scope="module")
def with_canary() -> dict[str, Any]:
    """What the whole demo prints: seconds of work, so one run is for both tests."""
    result = CliRunner().invoke(main, ["demo", "--device", "cpu", "--canary", "--json"])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_a_canary_speaks_of_what_it_can_see_and_is_silent_with_every_fix(with_canary: dict[str, Any]) -> None:
    heard = {scene["hazard"]: scene["control"]["canary"] for scene in with_canary["scenes"]}
    assert heard.pop("H9")["counts"] == {}
    for hazard, seen in heard.items():
        first = seen["findings"][0]
        assert first["hazards"] == [hazard]
        assert hazard not in ("H1", "H2", "H5") or first["wrong_at"] <= 50


def test_canary_md_shows_what_the_canary_of_the_demo_finds(with_canary: dict[str, Any]) -> None:
    """Nearly: the simulated device's threads decide in which step a look has arrived, and so which block is next."""
    found: dict[str, tuple[int, int]] = {}
    for scene in with_canary["scenes"]:
        canary = scene["control"]["canary"]
        first = canary["findings"][0]["wrong_at"] if canary["findings"] else 0
        found[f"{scene['fix']} ({scene['hazard']})"] = (sum(canary["counts"].values()), first)
        assert not scene["fixed"]["canary"]["counts"]
    (table,) = (block for block in blocks(DOCS / "canary.md") if "first one behind step" in block.text)
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table.text.splitlines()[2:]]
    shown = {label(name): (int(findings), 0 if step == "-" else int(step)) for name, findings, step in rows}
    assert shown.keys() == found.keys()
    for scene, (findings, step) in shown.items():
        assert found[scene][0] == pytest.approx(findings, rel=0.1)
        assert found[scene][1] == pytest.approx(step, abs=1 if findings else 0)


def test_offload_md_says_what_a_large_store_brings_to_each_admission() -> None:
    page = " ".join((DOCS / "offload.md").read_text(encoding="utf-8").split())
    (command,) = re.findall(r"`trtllm-kvfix (replay --generate chat [^`]*)`", page)
    for admission in ("all", "adaptive"):
        arguments = [*shlex.split(command), "--host-admission", admission, "--json"]
        (outcome,) = json.loads(CliRunner().invoke(main, arguments).stdout)["outcomes"]
        assert f"{100 * outcome['tokens']['hit_rate']:.1f} %" in page
        assert f"{outcome['moved']['blocks_to_host']:,}" in page


def test_the_picture_of_readme_md_is_what_the_demo_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "demo.svg"
    arguments = ["demo", "--device", "cpu", "--fix", "staged-offsets-v1=off", "--svg", str(drawn)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert drawn.read_text(encoding="utf-8") == (DOCS / "demo.svg").read_text(encoding="utf-8"), "draw it again"
