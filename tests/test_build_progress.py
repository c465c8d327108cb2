"""tools/build_progress.py: what `make` shows while it compiles."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "tools" / "build_progress.py"


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "compiled", "--", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_log_shows_ten_steps_and_hides_the_rest() -> None:
    done = run("for n in range(1, 201): print(f'  [{n}/200] Building CXX object')")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"compiled: {20 * part} of 200" for part in range(1, 11)]


def test_short_build_shows_each_step() -> None:
    done = run("for n in (1, 2): print(f'[{n}/2] Linking')")
    assert done.stdout.splitlines() == ["compiled: 1 of 2", "compiled: 2 of 2"]


def test_failure_shows_what_the_command_said_and_keeps_its_exit_code() -> None:
    done = run("import sys; print('[1/2] Building'); print('error: no such header'); sys.exit(3)")
    assert done.returncode == 3
    assert done.stderr.splitlines() == ["[1/2] Building", "error: no such header"]
