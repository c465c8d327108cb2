"""The command: what it prints, in which form, and how it exits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from trtllm_kvfix.cli import main
from trtllm_kvfix.errors import EXIT_INTERRUPTED
from trtllm_kvfix.hazards.case import Case, NotShown
from trtllm_kvfix.native import Device, DeviceError, open_device
from trtllm_kvfix.tools.verify import cases, command
from trtllm_kvfix.tools.verify.cases import run_case
from trtllm_kvfix.tools.verify.report import CaseOutcome, VerifyReport

from .doubles import unfixed, vacuous


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["verify", "--device", "cpu", "--iterations", "2", *map(str, arguments)])


def first(result: Result) -> str:
    """The result itself, which stands in front of the table, without its line breaks."""
    return " ".join(result.stdout.partition("\n\n")[0].split())


def only(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(cases, "CASES", (case,))


def test_what_all_cases_prove_comes_first_and_what_they_do_not() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert first(result).startswith(
        "Proven on a simulated device, so for the order of operations alone: in 20 of 20 cases, of H1, H2, H5 and H9, "
    )
    assert "Not proven: anything about a GPU" in first(result)
    assert result.stdout.count("proven") >= 19
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_vacuous_control_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, vacuous())
    result = run()
    assert result.exit_code == 1
    assert "VACUOUS: offsets-v2-dropped (snapshot): the control stayed clean in 2/2 iterations" in first(result)
    assert first(result).startswith("Proven: nothing.")


def test_a_fix_that_corrupts_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, unfixed())
    result = run()
    assert result.exit_code == 1
    assert "FAILED: offsets-v1 (snapshot): the fixed arm was corrupt in 2/2 iterations" in first(result)


def test_a_case_that_this_device_cannot_be_asked_about_is_listed_and_alone_it_is_bad_usage() -> None:
    listed = " ".join(run("--case", "offsets-v1", "--case", "ephemeral-source").stdout.split())
    assert "Not shown: ephemeral-source (4 KiB, hint; 64 KiB, hint; " in listed
    assert "in 2 of 2 cases, of H1" in listed
    alone = run("--case", "ephemeral-source")
    assert alone.exit_code == 2
    assert "--case is 'ephemeral-source': a simulated device keeps to the order" in alone.output


def test_a_device_that_is_right_in_all_that_was_asked_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, replace(cases.CASES[0], not_shown=lambda _: NotShown("it is right", looked=True)))
    result = run()
    assert result.exit_code == 0, result.output
    assert "Not shown: offsets-v1 (snapshot): it is right." in result.stdout
    assert json.loads(run("--json").stdout)["not_shown"][0]["why"] == "it is right"


def test_cases_are_chosen_by_name() -> None:
    result = run("--case", "store-order", "--case", "offsets-v1", "--json")
    report = json.loads(result.stdout)
    assert [case["case"] for case in report["cases"]] == ["offsets-v1"] * 2 + ["store-order"] * 3


def without_computed(value: Any) -> Any:
    """The models refuse what they compute themselves."""
    if isinstance(value, dict):
        return {
            key: without_computed(part) for key, part in value.items() if key not in ("proven", "partial", "verdict")
        }
    return [without_computed(part) for part in value] if isinstance(value, list) else value


def test_json_is_what_the_models_say() -> None:
    result = run("--case", "offsets-v2-rebound", "--seed", "7", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    report = VerifyReport.model_validate(without_computed(printed))
    assert (printed["proven"], report.proven) == (True, True)
    assert [case["verdict"] for case in printed["cases"]] == ["proven"] * 2
    assert (report.seed, report.iterations, report.device.simulated) == (7, 2, True)
    for case in report.cases:
        assert (case.control.corrupt, case.fixed.corrupt) == (2, 0)
        assert case.control.call_us_median > 0
        assert case.control.example is not None
        assert case.control.example.words_wrong > 0


def test_html_is_written_beside_what_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "verify.html"
    result = run("--case", "offsets-v1", "--html", path)
    assert result.exit_code == 0, result.output
    assert "offsets-v1" in path.read_text(encoding="utf-8")
    assert "offsets-v1" in result.stdout
    assert result.stderr == f"Wrote {path}\n"
    assert run("--case", "offsets-v1").stderr == "For a page with a timeline of every arm, add --html FILE.\n"


def test_a_page_that_cannot_be_written_is_bad_usage_after_the_results_are_shown(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 100)
    result = run("--case", "graph-inputs", "--html", path)
    assert result.exit_code == 2
    assert "in 1 of 1 case, of H9, the control corrupts" in first(result)
    assert f"--html is '{path}': it cannot be written: File name too long" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case", "offset-v1"), "'offset-v1' is not one of 'offsets-v1', 'offsets-v2-index'"),
        (("--device", "gpu"), "--device is 'gpu': it is 'auto', 'cpu', "),
        (("--iterations", "0"), "0 is not in the range x>=1"),
        (("--seed", str(2**64)), f"{2**64} is not in the range 0<=x<={2**64 - 1}"),
        (("--html", "missing/verify.html"), "--html is 'missing/verify.html': there is no folder missing"),
    ],
)
def test_bad_usage_exits_with_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_device_that_is_not_there_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, seed: int) -> object:  # noqa: ARG001
        raise DeviceError("no driver")

    monkeypatch.setattr(command, "open_device", missing)
    result = run("--device", "cuda")
    assert result.exit_code == 2
    assert "--device is 'cuda': no driver" in result.output


class NoKernels:
    name = "a GPU"
    has_kernels = False


def test_a_gpu_without_kernels_is_refused_by_name_and_passed_over_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernels(name: str, seed: int) -> object:
        return open_device("cpu", seed=seed) if name == "cpu" else NoKernels()

    monkeypatch.setattr(command, "open_device", no_kernels)
    refused = run("--device", "cuda")
    assert refused.exit_code == 2
    assert "--device is 'cuda': a GPU has no kernels to run" in refused.output
    passed_over = run("--device", "auto", "--case", "offsets-v1")
    assert passed_over.exit_code == 0, passed_over.output
    assert "a GPU was passed over" in " ".join(passed_over.stdout.split())
    assert first(passed_over).startswith("Proven on a simulated device")


def test_a_device_that_fails_exits_with_1_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: object) -> None:
        raise DeviceError("stream 3: illegal address")

    monkeypatch.setattr(command, "run_case", failing)
    result = run()
    assert (result.exit_code, result.output) == (1, "Error: the device failed: stream 3: illegal address\n")


def test_ctrl_c_shows_the_cases_that_ran_and_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(device: Device, case: Case, *rest: Any) -> CaseOutcome:
        if case.variant != "snapshot":
            raise KeyboardInterrupt
        return run_case(device, case, *rest)

    monkeypatch.setattr(command, "run_case", interrupted)
    result = run("--case", "offsets-v1")
    assert result.exit_code == EXIT_INTERRUPTED
    assert first(result).startswith("Interrupted after 1 of 2 cases. Proven ")
    assert json.loads(run("--case", "offsets-v1", "--json").stdout)["partial"] is True
