"""Needs a CUDA GPU, torch and an extension with kernels.

When the driver of this machine reads pageable sources (H13), asked twice: by `verify`, and by the reproducer.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from integration.gpu.record import record  # noqa: E402  not there where the module is skipped
from trtllm_kvfix.hazards.h13_ephemeral_sources.device import CASES, NAME  # noqa: E402
from trtllm_kvfix.tools.reproduce import script_of  # noqa: E402

LIMIT_S = 120


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    command = [sys.executable, "-m", "trtllm_kvfix", "verify", "--device", "cuda", "--case", NAME, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for each in found["cases"]:
        record("ephemeral.csv", {"variant": each["variant"], "late": each["control"]["corrupt"], "why": ""})
    for each in found["not_shown"]:
        record("ephemeral.csv", {"variant": each["variant"], "late": 0, "why": each["why"]})
    return found


def late(report: dict[str, Any], *, hint: bool) -> list[str]:
    return [each["variant"].partition(",")[0] for each in report["cases"] if each["variant"].endswith("hint") == hint]


def test_the_driver_is_asked_about_every_size(report: dict[str, Any]) -> None:
    assert [each for each in report["not_shown"] if not each["looked"]] == []
    assert {each["variant"] for each in report["cases"] + report["not_shown"]} == {case.variant for case in CASES}


def test_what_is_read_late_is_so_every_time_and_a_pinned_snapshot_never(report: dict[str, Any]) -> None:
    for each in report["cases"]:
        assert (each["verdict"], each["control"]["corrupt"], each["fixed"]["corrupt"]) == ("proven", 150, 0)


def test_the_script_of_torch_alone_finds_the_same_sizes(report: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "h13.py"
    script.write_text(script_of("H13"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    hinted, plain = (", ".join(late(report, hint=hint)) or "no size" for hint in (True, False))
    assert done.stdout.splitlines() == [
        f"read late with PREFER_OVERLAP_WITH_COMPUTE: {hinted}",
        f"read late without: {plain}; with a wait: no size",
    ]
    assert done.returncode == int(bool(report["cases"])), done.stderr
