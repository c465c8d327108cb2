"""`pytest --hostrace` on the made-up driver: the test with the race fails, the others pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from watch.tests.conftest import LIMIT_S, ROOT

TESTS = """
import pytest
from watch.gpu.driver import Driver
from watch.gpu.planted import CASES
from watch.gpu.run_planted import run

@pytest.fixture(scope="module")
def cuda():
    cuda = Driver()
    yield cuda
    cuda.end()

@pytest.mark.parametrize("repaired", [True, False, True])
def test_copies(cuda, repaired):
    run(cuda, CASES["copy_to_device"](cuda), repaired)
"""
PYTEST = (sys.executable, "-m", "pytest", "-p", "hostrace.pytest_plugin", "-p", "no:cacheprovider", "-v")


def outcome(environ: dict[str, str], folder: Path, *options: str) -> tuple[int, str]:
    (folder / "test_copies.py").write_text(TESTS)
    command = [*PYTEST, "-c", str(ROOT / "pyproject.toml"), *options, str(folder / "test_copies.py")]
    # Where the package is installed, its entry point would load the plugin once more.
    alone = {**environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=alone, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_test_with_the_race_fails_and_no_other(environ: dict[str, str], tmp_path: Path) -> None:
    status, text = outcome(environ, tmp_path, "--hostrace")
    assert status == 1
    assert "1 failed, 2 passed" in text
    assert "FAILED" in text and "test_copies[False]" in text
    assert "The host wrote it while a copy still reads it" in text
    assert "planted.py:" in text


def test_known_races_do_not_fail(environ: dict[str, str], tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text("touch:*planted.py:* in write\n")
    status, text = outcome(environ, tmp_path, "--hostrace", "--hostrace-suppress", str(known))
    assert status == 0, text


def test_suppressions_that_are_not_there_are_a_usage_error(environ: dict[str, str], tmp_path: Path) -> None:
    status, text = outcome(environ, tmp_path, "--hostrace", "--hostrace-suppress", str(tmp_path / "nowhere"))
    assert status == int(pytest.ExitCode.USAGE_ERROR), text
    assert f"--hostrace: {tmp_path / 'nowhere'} cannot be read: " in text and "passed" not in text


def test_without_the_option_nothing_is_watched(environ: dict[str, str], tmp_path: Path) -> None:
    status, text = outcome(environ, tmp_path)
    assert status == 0
    assert "3 passed" in text


@pytest.mark.parametrize("variable", ["FAKE_DRIVER_REFUSES", "FAKE_CUPTI_TAKEN"])
def test_where_nothing_can_be_watched_no_test_runs(environ: dict[str, str], tmp_path: Path, variable: str) -> None:
    status, text = outcome({**environ, variable: "1"}, tmp_path, "--hostrace")
    assert status == int(pytest.ExitCode.USAGE_ERROR)
    assert "passed" not in text
    assert "--hostrace: " in text
