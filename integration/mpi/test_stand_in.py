"""The stand-in's server with ranks that MPI spawns: the fixes and the configuration reach each of them.

Needs Open MPI and mpi4py (Debian: openmpi-bin; pip: mpi4py).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.mpi.test_ranks import OPEN_MPI, TIMEOUT_S, pytestmark  # noqa: F401  pytest reads the mark by its name
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN

CONFIG = "kvfix: {fixes: {nixl-listener: off}}\n"


def serve(folder: Path, ranks: int, variant: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    (folder / "server.yaml").write_text(CONFIG if launcher else "")
    environ = environment(STANDIN, STANDIN_VARIANT=variant, **OPEN_MPI)
    environ["TRTLLM_KVFIX_RUNTIME_DIR"] = str(folder / "run")
    command = [sys.executable, "-m", "tensorrt_llm.commands.serve", "model", "--config", "server.yaml"]
    return subprocess.run(
        [*launcher, *command, "--tp_size", str(ranks)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environ,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize(("ranks", "variant"), [(2, "B"), (4, "C")])
def test_every_rank_of_a_server_has_the_fixes_and_the_configuration(tmp_path: Path, ranks: int, variant: str) -> None:
    done = serve(tmp_path, ranks, variant, sys.executable, "-m", "trtllm_kvfix", "run", "--")
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["rank"], each["error"]) for each in reports] == [(rank, None) for rank in range(ranks)]
    lines = re.findall(rf"rank (\d) of {ranks}, variant {variant}; (.*)", done.stderr)
    assert sorted(int(rank) for rank, _ in lines) == list(range(ranks))
    assert len({words for _, words in lines}) == 1
    assert "staged-offsets-v1" in lines[0][1].partition("applied: ")[2].partition(";")[0]
    assert "off: nixl-listener" in lines[0][1]


def test_without_the_hook_no_rank_has_any(tmp_path: Path) -> None:
    done = serve(tmp_path, 2, "B")
    assert done.returncode == 0, done.stderr
    assert "trtllm-kvfix" not in done.stderr
