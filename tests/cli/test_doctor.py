"""doctor: true about what is here, and exit code 1 when the extension is missing or unfit."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from trtllm_kvfix import __version__, cli, machine, native
from trtllm_kvfix.tools.doctor import report as shown


def test_report_says_what_is_installed() -> None:
    result = CliRunner().invoke(cli.main, ["doctor", "--json"])
    report = json.loads(result.output)
    assert result.exit_code == 1
    assert report["package"] == __version__
    assert report["numpy"] == np.__version__
    assert report["extension"] == native.build_info()
    assert report["extension"]["locks"] == "yes"
    assert set(report["optional"]) == {"matplotlib", "mpi4py", "tensorrt_llm", "torch"}
    (problem,) = report["problems"]
    assert problem.startswith(f"TensorRT-LLM is not installed in this Python ({sys.executable})")
    assert "Run doctor with its Python" in problem


def text_of(*options: str) -> str:
    """What `doctor` prints, without its line breaks."""
    return " ".join(CliRunner().invoke(cli.main, ["doctor", *options]).output.split())


def test_the_facts_of_the_machine_come_with_verbose_alone() -> None:
    result = CliRunner().invoke(cli.main, ["doctor", "--verbose"])
    assert result.exit_code == 1
    for value in (__version__, np.__version__, *native.build_info().values()):
        assert value in result.output
    brief = CliRunner().invoke(cli.main, ["doctor"]).output
    assert brief.startswith("CANNOT TELL: TensorRT-LLM is not installed in this Python.\n")
    assert np.__version__ not in brief and "This machine" not in brief


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_missing_extension_is_a_finding(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.delitem(sys.modules, "trtllm_kvfix.native", raising=False)
    monkeypatch.delattr("trtllm_kvfix.native", raising=False)
    monkeypatch.setitem(sys.modules, "trtllm_kvfix._core", None)
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 1
    assert "make build" in result.output


def test_missing_extension_is_a_finding_in_a_process_that_has_imported_nothing() -> None:
    """The folder of a checkout that was not built looks like this."""
    code = "import sys; sys.modules['trtllm_kvfix._core'] = None; from trtllm_kvfix.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "hides the installed package" in " ".join(done.stdout.split())


def test_extension_without_its_lock_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "build_info", lambda: {"locks": "no"})
    result = CliRunner().invoke(cli.main, ["doctor", "--json"])
    assert result.exit_code == 1
    assert "KVFIX_NO_LOCK" in json.loads(result.output)["problems"][0]


@pytest.mark.parametrize(
    ("built", "gpu", "runs", "missing"),
    [
        ("sm_90", None, None, None),
        ("sm_90", "cuda:0 GPU", True, None),
        ("none", None, None, "nvcc was not found"),
        ("sm_90", "cuda:0 GPU", False, "sm_90, none of which runs on cuda:0 GPU"),
    ],
)
def test_missing_kernels_are_named_with_what_they_cost(
    monkeypatch: pytest.MonkeyPatch, built: str, gpu: str | None, runs: bool | None, missing: str | None
) -> None:
    """They are no problem: the exit code is that of TensorRT-LLM, which is not installed here."""
    monkeypatch.setattr(native, "build_info", lambda: {"locks": "yes", "kernels": built})
    described = machine.describe() | {"gpu": gpu, "gpu_runs_kernels": runs}
    monkeypatch.setattr(machine, "describe", lambda: described)
    report = json.loads(CliRunner().invoke(cli.main, ["doctor", "--json"]).output)
    assert len(report["problems"]) == 1
    if missing is None:
        assert report["kernels_missing"] is None
        assert not any(cost in text_of("--verbose") for cost in shown.COSTS)
    else:
        assert missing in report["kernels_missing"]
        assert missing in text_of() and shown.CURE not in text_of()
        assert all(line in text_of("--verbose") for line in (missing, *shown.COSTS, shown.CURE))
