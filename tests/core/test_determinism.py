"""The same calls give the same state on every rank: no clock, no address and no hash order has a say."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = 100_000


def digests(seed: int, operations: int, **environment: str) -> str:
    command = [sys.executable, "-m", "tests.core.workload", str(seed), str(operations)]
    env = {**os.environ, **environment}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_two_processes_that_do_the_same_end_in_the_same_state() -> None:
    one = digests(1, OPERATIONS, PYTHONHASHSEED="1")
    other = digests(1, OPERATIONS, PYTHONHASHSEED="2", MALLOC_ARENA_MAX="1", MALLOC_TOP_PAD_="1000000")
    assert one == other
    assert len(set(one.split())) == 10, "ten digests on the way, all different"


def test_two_that_do_not_do_the_same_differ() -> None:
    assert digests(1, 20_000) != digests(2, 20_000)
