"""README shows what the commands print: each is run, on the stand-in as a release with V2 by default."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.overlay.upstream_double import ROOT, environment
from tests.standin.fixture import as_release

PYTHON = sys.executable
OURS = f"{PYTHON} -m trtllm_kvfix"
SERVER = """
import subprocess, sys
from tensorrt_llm.llmapi.llm import LLM
llm = LLM(model="model")
llm.generate([[1, 2, 3]], max_tokens=2)
subprocess.run(sys.argv[1:], check=True)
llm.shutdown()
"""
BLOCKS = re.findall(r"^```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
SHOWN = re.findall(r"^\$ (.*)\n((?:[^$].*\n)+)", "".join(BLOCKS), re.MULTILINE)


def printed(folder: Path, command: str) -> list[str]:
    """`status` is asked while a server runs."""
    place = as_release(folder, "1.4.0rc4", v2=True)
    environ = environment(place, STANDIN_VARIANT="D", KVFIX_BOUND=str(ROOT / "build" / "bound"))
    environ["TLLM_WORKER_USE_SINGLE_PROCESS"] = "1"
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (place, ROOT)))
    words = command.replace("trtllm-kvfix", OURS).split()
    if command.endswith(" status"):
        words = [*OURS.split(), "run", "--", PYTHON, "-c", SERVER, *words]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=place, env=environ
    ).stdout.splitlines()


def anywhere(line: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"process \d+|job \S+", "", line)


def test_readme_shows_commands() -> None:
    assert [command for command, _ in SHOWN] == [
        "trtllm-kvfix doctor",
        "trtllm-kvfix run -- trtllm-kvfix doctor",
        "trtllm-kvfix status",
    ]


@pytest.mark.parametrize(("command", "text"), SHOWN)
def test_what_readme_shows_is_what_the_command_prints(tmp_path: Path, command: str, text: str) -> None:
    """Dots on a line of their own stand for the rest."""
    *lines, dots = map(anywhere, text.splitlines())
    assert dots == "  ..."
    assert list(map(anywhere, printed(tmp_path, command)))[: len(lines)] == lines
