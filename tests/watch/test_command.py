"""`trtllm-kvfix watch` is hostrace's command, and says how to get it where it is not installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hostrace.races import NUMBERS
from watch.tests.conftest import LIMIT_S, ROOT

RACY = (sys.executable, "-m", "watch.tests.programs", "races_and_fails")
# As an interpreter in which there is no hostrace.
WITHOUT = "import sys; sys.modules['hostrace'] = None; from trtllm_kvfix.__main__ import main; main()"


def without_hostrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_options_reach_hostrace(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "races.json"
    command = [sys.executable, "-m", "trtllm_kvfix", "watch", "--hold", "--hold-limit", "0.05", "--json", str(file)]
    done = subprocess.run(
        [*command, "--", *RACY], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    report = json.loads(file.read_text())
    assert (done.returncode, len(report["races"]), report["held"]) == (3, 1, True), done.stderr
    assert set(report["numbers"]) == set(NUMBERS)
    assert "hostrace: RACE 1: The host wrote it while a copy still reads it" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--hold", "--html", "x.html", "--", "true")])
def test_without_hostrace_one_line_says_what_to_install(arguments: tuple[str, ...]) -> None:
    done = without_hostrace("watch", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "Error: `watch` needs hostrace, which is not installed: pip install hostrace (in a checkout: ./watch)\n"
    )


def test_without_hostrace_the_other_commands_stay() -> None:
    done = without_hostrace("--help")
    assert done.returncode == 0
    assert "  watch " in done.stdout and "  verify " in done.stdout


def test_reports_are_compared_by_hostrace(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "races.json"
    command = [sys.executable, "-m", "trtllm_kvfix", "watch"]
    for arguments, status in (("--json", str(file), "--", *RACY), 3), (("diff", str(file), str(file)), 1):
        done = subprocess.run(
            [*command, *arguments], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == status, done.stderr
    assert done.stdout.startswith("still 1 -> 1  write by an instruction of what a copy reads\n")
