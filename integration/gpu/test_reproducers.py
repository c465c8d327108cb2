"""Needs a CUDA GPU, torch, and tests/ beside integration/.

The reproducers with torch itself: those of torch alone as they are, the others on the stand-in with torch's tensors.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from integration.gpu.record import record  # noqa: E402
from tests.reproducers.test_reproducers import BELOW_THE_OVERLAY, CLEAN, MODES, RUNS, build, script  # noqa: E402  not there where the module is skipped
from tests.standin.fixture import STANDIN  # noqa: E402

ROOT = STANDIN.parents[1]
LIMIT_S = 120


def run(
    hazard: str, variant: str, folder: Path, *launcher: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    paths = os.pathsep.join(map(str, (STANDIN, ROOT)))
    environ = os.environ | build(variant) | variables | {"STANDIN_DEVICE": "torch", "PYTHONPATH": paths}
    command = [sys.executable, *launcher, script(hazard, folder)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)


@pytest.mark.parametrize(("hazard", "variant", "code"), RUNS)
def test_a_reproducer_says_what_the_build_has(hazard: str, variant: str, code: int, tmp_path: Path) -> None:
    done = run(hazard, variant, tmp_path)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "code", "said"), MODES)
def test_a_torn_launch_stays_by_the_mode_of_the_trim(mode: str, code: int, said: str, tmp_path: Path) -> None:
    done = run("h10", "F+trim", tmp_path, TRTLLM_STEP_PROLOGUE_TRIM=mode)
    assert (done.stdout, done.returncode) == (f"{said}\n", code), done.stderr
    note(mode, "off", done)


@pytest.mark.parametrize("mode", [mode for mode, *_ in MODES])
def test_no_launch_is_torn_below_the_overlay_in_any_mode(mode: str, tmp_path: Path) -> None:
    done = run("h10", "F+trim", tmp_path, *BELOW_THE_OVERLAY, TRTLLM_STEP_PROLOGUE_TRIM=mode)
    assert done.returncode == CLEAN, done.stdout + done.stderr
    note(mode, "on", done)


def note(mode: str, overlay: str, done: "subprocess.CompletedProcess[str]") -> None:
    said = done.stdout.strip().splitlines()[-1]
    record("trim_modes.csv", {"mode": mode, "overlay": overlay, "exit_code": done.returncode, "said": said})
