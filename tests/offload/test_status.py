"""`trtllm-kvfix status` and the metrics describe a rank's host tier."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.overlay.entries import attestation
from trtllm_kvfix import cli
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload import tier_report
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.overlay import attest

from .conftest import BLOCK_BYTES, MakeBench, serve_alone
from .faults import FAULTS
from .upstream_double import Request


def prompt(marker: int) -> list[int]:
    return [marker, *range(1, 24)]


def folder() -> Path:
    return Path(os.environ["TRTLLM_KVFIX_RUNTIME_DIR"])


def tier() -> dict[str, Any]:
    (entry,) = tier_report.live(folder())
    return entry


def status(*options: str) -> str:
    result = CliRunner().invoke(cli.main, ["status", *options], terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def test_bytes_that_were_requested_mapped_and_pinned_are_told(make_bench: MakeBench) -> None:
    bench = make_bench(host_bytes=100 * BLOCK_BYTES + 5)
    requested, mapped = 100 * BLOCK_BYTES + 5, 100 * BLOCK_BYTES
    assert {name: tier()[name] for name in ("rank", "slots", "requested_bytes", "mapped_bytes", "pinned_bytes")} == {
        "rank": 0, "slots": 100, "requested_bytes": requested, "mapped_bytes": mapped, "pinned_bytes": mapped,
    }  # fmt: skip
    assert counters.offload_requested_bytes.value == requested
    assert counters.offload_pool_bytes.value == counters.offload_pinned_bytes.value == mapped
    assert bench.worker.shutdown()
    assert tier()["pinned_bytes"] == 0 == counters.offload_pinned_bytes.value


@pytest.mark.parametrize("direction", ["store", "load"])
def test_the_first_error_of_a_rank_is_shown(
    direction: str, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, errors = make_bench(), counters.offload_rank_errors.value
    if direction == "load":
        serve_alone(bench, Request(1, prompt(1)))
    assert (tier()["transfers_failed"], tier()["first_error"]) == (0, "")
    with monkeypatch.context() as patch:
        FAULTS["the mark is refused"](patch, bench, direction)
        serve_alone(bench, Request(2, prompt(1)))
    failed = tier()["transfers_failed"]
    assert failed >= 1
    assert counters.offload_rank_errors.value == errors + failed
    assert tier()["first_error"] == "not begun: no event is left"
    assert "no event is left" in " ".join(status().split())


def test_status_shows_the_host_tier_beside_what_the_process_attests(make_bench: MakeBench) -> None:
    make_bench()
    assert "no process of this user runs TensorRT-LLM with the hook" in status()
    attest.write(folder(), attestation())
    shown = status()
    assert "token-budget" in shown
    assert "host tiers of the offload connector" in shown
    (entry,) = json.loads(status("--json"))
    assert entry["offload"]["slots"] == 256


def test_errors_are_shown_as_they_are_brackets_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    error = "[/dev/shm]: [red]full[/red]"
    attest.write(tmp_path, replace(attestation(), faults={"token-budget": 1}, first_errors={"token-budget": error}))
    TierReport(folder=tmp_path).failed([error])
    assert " ".join(status().split()).count(error) == 2


def test_without_a_host_tier_there_is_nothing_to_say_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_RUNTIME_DIR", str(tmp_path))
    attest.write(tmp_path, attestation())
    assert "host tier" not in status()
    (entry,) = json.loads(status("--json"))
    assert "offload" not in entry


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    report = TierReport(folder=tmp_path)
    report.failed(["one", "two"])
    assert len([line for line in caplog.messages if "will not know" in line]) == 1
    assert (report.transfers_failed, report.first_error) == (2, "one")
