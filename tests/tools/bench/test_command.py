"""The command: every way is run, its numbers add up, and it exits as it should."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from trtllm_kvfix.canary import canary
from trtllm_kvfix.cli import main
from trtllm_kvfix.engine.config import HAZARDS
from trtllm_kvfix.native import DeviceError
from trtllm_kvfix.tools.bench.runs import SMALL, ways

DRAWS = find_spec("matplotlib") is not None


def run(*arguments: str | Path) -> Result:
    small = ("--device", "cpu", "--requests", "5", "--rate", "1000", "--repeats", "1")
    return CliRunner().invoke(main, ["bench", *small, *map(str, arguments)])


def test_every_fix_manager_and_tier_has_its_way() -> None:
    chosen = ways(SMALL.config, graphs=True)
    found = [way.config for way in chosen]
    assert len({way.name for way in chosen}) == len(chosen), "a picture has one bar for each name"
    assert {fix for config in found for fix in config.off} == set(HAZARDS)
    assert {config.manager for config in found} == {"native", "one-by-one"}
    assert {config.blocks_host > 0 for config in found} == {True, False}
    assert {config.tier for config in found} == {"native", "connector"}
    assert {config.overlap for config in found} == {config.graphs for config in found} == {True, False}
    assert len(set(found)) == len(found)


@pytest.fixture(scope="module")
def report() -> Any:
    """Of every way, with a canary."""
    result = run("--canary", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "bench.svg"


@pytest.fixture(scope="module")
def shown(picture: Path) -> Result:
    """The table, and where matplotlib is there, the picture."""
    return run("--plot", picture) if DRAWS else run()


def test_with_a_canary_there_is_one_way_more(report: Any) -> None:
    assert len(report["arms"]) == len(ways(SMALL.config, graphs=False)) + 1
    names = [arm["name"] for arm in report["arms"]]
    assert names[:2] == ["all fixes", "all fixes, a canary"]
    assert report["arms"][0]["tokens_computed"] == report["arms"][1]["tokens_computed"]


def test_a_canary_that_has_stood_down_is_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DeviceError("cannot pin")

    monkeypatch.setattr(canary, "ring_of", refuse)
    result = run("--canary")
    assert result.exit_code == 1
    assert "the canary stood down in step 0: DeviceError: cannot pin, and found {}: this run does not" in result.output


def test_json_has_the_numbers_of_every_way(report: Any) -> None:
    for arm in report["arms"]:
        assert arm["tokens_per_s"] > 0
        assert 0 < arm["first_token_ms_median"] <= arm["first_token_ms_p95"]
        assert arm["tokens_computed"] > 0
    sums = {arm["tokens_reused"] + arm["tokens_computed"] for arm in report["arms"] if arm["tier"] != "connector"}
    assert len(sums) == 1


def test_the_table_fits_a_narrow_terminal_and_says_what_it_is(shown: Result) -> None:
    assert shown.exit_code == 0, shown.output
    table = shown.stdout.split("Medians of")[0].splitlines()[1:]
    assert not any("canary" in line for line in table), "it was not asked for"
    assert any(line.startswith("  no staged-offsets-v1") for line in table)
    assert max(map(len, table)) <= 80
    assert "not TensorRT-LLM" in shown.stdout and "say nothing of a GPU" in shown.stdout


@pytest.mark.skipif(not DRAWS, reason="matplotlib is an extra")
def test_the_picture_is_drawn(shown: Result, picture: Path) -> None:
    assert shown.exit_code == 0
    assert "tokens per second" in picture.read_text(encoding="utf-8") or picture.stat().st_size > 5000


def test_bad_usage_exits_with_2(tmp_path: Path) -> None:
    assert run("--plot", tmp_path / "bench.txt").exit_code == 2
    assert run(tmp_path / "missing.jsonl").exit_code == 2
    for rate in ("0", "1e-300", "nan"):
        assert run("--rate", rate).exit_code == 2, rate
