"""Dropping a native object does not stop Python's other threads, even if it waits for the device."""

import subprocess
import sys
from pathlib import Path

import pytest

from .dropped import EVERYWHERE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_an_object_that_is_dropped_waits_without_the_gil(kind: str) -> None:
    command = [sys.executable, "-m", "tests.staging.dropped", "cpu", kind]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "another thread"), ran.stderr
