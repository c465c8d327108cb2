"""The reproducer of H6 with NIXL itself: the second agent with a listener fails, the second one without does not."""

import os
import subprocess
import sys

from integration.nixl.test_listener import NIXL, pytestmark
from tests.overlay.upstream_double import ROOT

__all__ = ["pytestmark"]  # skipped where NIXL is missing
LIMIT_S = 300


def test_the_reproducer_shows_the_collision() -> None:
    environ = os.environ | {"PYTHONPATH": f"{NIXL}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "trtllm_kvfix", "reproduce", "H6"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "True without listeners, False with them" in done.stdout
