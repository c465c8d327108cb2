"""Needs a CUDA GPU, and tests/ beside integration/.

On a GPU, memory is given back behind all streams. Python's other threads go on meanwhile.
"""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.staging.dropped import KINDS  # noqa: E402  not there where the module is skipped

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_dropped_waits_without_the_gil(kind: str) -> None:
    command = [sys.executable, "-m", "tests.staging.dropped", "cuda", kind]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "another thread"), ran.stderr
