"""A program that is forked finds what it would find in an interpreter that was started for it, and ends as it would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh

SAYS = """
import os, sys
print(__name__, sys.argv, sys.path[0], os.getcwd(), os.environ["SAID"], globals().get("__file__"))
print("error", file=sys.stderr)
"""
ENDS = {
    "in order": "",
    "with a code": "sys.exit(7)",
    "with words": "sys.exit('no more')",
    "with an exception": "raise ValueError('planted')",
    "by a signal": "os.kill(os.getpid(), 9)",
}


@pytest.fixture(params=["-c", "-m", "script"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Of a program that is still to be written, where it is in a file."""
    how = {"-c": ["-c", ""], "-m": ["-m", "program"], "script": [str(tmp_path / "program.py")]}
    return [sys.executable, *how[request.param], "one", "--two"]


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_program_does_as_one_that_is_started(command: list[str], end: str, tmp_path: Path) -> None:
    text = f"{SAYS}{ENDS[end]}\n"
    (tmp_path / "program.py").write_text(text)
    command = [text if word == "" else word for word in command]
    environ = {**os.environ, "SAID": "here"}
    started = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    forked = fresh.run(command, cwd=tmp_path, env=environ)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[:1] == started.stderr.splitlines()[:1] == ["error"]
    assert forked.stderr.splitlines()[-1] == started.stderr.splitlines()[-1]
    assert fresh._can_be_forked(command, environ), "it was started, and shows nothing"


@pytest.mark.parametrize("given", [{"PYTHONHASHSEED": "1"}, {"LD_PRELOAD": ""}])
def test_what_an_interpreter_reads_once_starts_one(given: dict[str, str]) -> None:
    assert not fresh._can_be_forked([sys.executable, "-c", ""], {**os.environ, **given})
    assert not fresh._can_be_forked([sys.executable, "-S", "-c", ""], os.environ)
