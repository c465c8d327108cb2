"""README shows what the commands print: each is run, on the stand-in as a release with V2 by default."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh
from tests.overlay.upstream_double import ROOT, environment
from tests.pod import EXAMPLES, documents
from tests.standin.fixture import STANDIN, as_release

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


TYPED = [
    line.partition(" #")[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
RELEASES = {"B": ("1.2.1", False), "D": ("1.4.0rc4", True)}  # with V2 by default, or without


def surroundings(folder: Path, variant: str) -> tuple[Path, dict[str, str]]:
    """A folder with a server's file, and its TensorRT-LLM."""
    version, v2 = RELEASES[variant]
    place = as_release(folder, version, v2=v2)
    (place / "server.yaml").write_text((ROOT / "examples" / "server.yaml").read_text())
    environ = environment(place, STANDIN_VARIANT=variant, KVFIX_BOUND=str(ROOT / "build" / "bound"))
    environ["TLLM_WORKER_USE_SINGLE_PROCESS"] = "1"
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (place, ROOT)))
    environ["PATH"] = os.pathsep.join((str(STANDIN / "bin"), str(Path(PYTHON).parent), environ["PATH"]))
    return place, environ


def printed(folder: Path, command: str) -> list[str]:
    """`status` is asked while a server runs."""
    place, environ = surroundings(folder, "D")
    words = command.replace("trtllm-kvfix", OURS).split()
    if command.endswith(" status"):
        words = [*OURS.split(), "run", "--", PYTHON, "-c", SERVER, *words]
    return fresh.run(words, cwd=place, env=environ).stdout.splitlines()


def anywhere(line: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"process \d+|job \S+", "", line)


def test_readme_types_what_is_tried() -> None:
    """The wheel is built and installed in integration/dist, and tests/test_going_back.py plays the pod of the
    manifest."""
    pip, doctor, run, docker, apply, status = TYPED
    assert pip == "python -m pip install ./trtllm-kvfix"  # elsewhere, as Python imports what is in its own folder
    assert (ROOT / docker.split()[docker.split().index("-f") + 1]).is_file()
    assert ROOT / apply.split()[-1] == EXAMPLES / "kubernetes" / "server.yaml"
    assert f"deploy/{documents()['Deployment']['metadata']['name']}" in status
    assert (doctor, run) == (
        "trtllm-kvfix doctor -- trtllm-serve MODEL --config server.yaml",
        "trtllm-kvfix run -- trtllm-serve MODEL --config server.yaml",
    )


@pytest.mark.parametrize("variant", RELEASES)
def test_the_minute_of_readme(tmp_path: Path, variant: str) -> None:
    """Hit, started with the fixes, and started without: the lines as they stand."""
    place, environ = surroundings(tmp_path, variant)

    def typed(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        words = line.replace("trtllm-kvfix", OURS).split()
        return fresh.run(words, cwd=place, env=environ | variables)

    _, doctor, run, *_ = TYPED
    hit = typed(doctor)
    assert hit.returncode == 1 and hit.stdout.startswith("NOT FIXED: "), hit.stderr
    fixed = typed(run)
    assert fixed.returncode == 0 and "applied: " in fixed.stderr, fixed.stderr
    assert sum(json.loads(fixed.stdout)["corrupt"].values()) == 0
    bare = typed(run, TRTLLM_KVFIX_ENABLED="false")
    assert bare.returncode == 0 and "WITHOUT the fixes" in bare.stderr, bare.stderr
    assert "applied: " not in bare.stderr


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
