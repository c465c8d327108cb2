"""Metrics of a server with two ranks: each rank answers on its own port with its own numbers, and they move.

Needs Open MPI and mpi4py (Debian: openmpi-bin; pip: mpi4py).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.mpi.test_ranks import OPEN_MPI, TIMEOUT_S, pytestmark  # noqa: F401  pytest reads the mark by its name
from tests.overlay.upstream_double import ROOT, environment
from tests.ports import free_ports
from tests.standin.fixture import STANDIN

RANKS = 2
SERVER = """
import json
import os
from urllib.request import urlopen

def task():
    from mpi4py import MPI
    from tests.standin.serving import Server

    ranks = MPI.COMM_WORLD
    server = Server({"max_num_tokens": 48})
    server.run(server.workload(4 + 4 * ranks.rank))
    ranks.barrier()
    first = int(os.environ["TRTLLM_KVFIX_METRICS_PORT"])
    pages = [urlopen(f"http://127.0.0.1:{first + rank}/metrics").read().decode() for rank in range(ranks.size)]
    ranks.barrier()  # nobody stops serving before the others have looked
    server.close()
    return pages

if __name__ == "__main__":
    from tensorrt_llm.llmapi.mpi_session import MpiPoolSession

    session = MpiPoolSession(2)
    try:
        print(json.dumps(session.submit_sync(task)))
    finally:
        session.shutdown()
"""


def serve(folder: Path, port: int, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "server.py").write_text(SERVER)
    environ = environment(folder, STANDIN_VARIANT="C", **OPEN_MPI, **variables)
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (STANDIN, ROOT)))
    run = (sys.executable, "-m", "trtllm_kvfix", "run", "--metrics-port", str(port), "--")
    return subprocess.run(
        [*run, sys.executable, "server.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environ,
        timeout=TIMEOUT_S,
    )


def value(page: str, name: str, rank: int) -> float:
    found = re.search(rf'^trtllm_kvfix_{name}{{rank="{rank}"}} (\S+)$', page, re.MULTILINE)
    assert found, f"rank {rank} has no {name}"
    return float(found[1])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Each rank's view of each rank."""
    done = serve(tmp_path_factory.mktemp("server"), free_ports(RANKS))
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_rank_answers_every_other(pages: list[list[str]]) -> None:
    assert [len(seen) for seen in pages] == [RANKS] * RANKS
    for seen in pages:
        for rank, page in enumerate(seen):
            assert f'trtllm_kvfix_fix_info{{fix="staged-offsets-v1",rank="{rank}",state="applied"}} 1.0' in page


def test_the_numbers_are_the_ranks_own_and_move(pages: list[list[str]]) -> None:
    first, second = (value(pages[0][rank], "staged_shipments_total", rank) for rank in range(RANKS))
    assert 0 < first < second, "the second rank has answered more requests"
    for rank in range(RANKS):
        assert value(pages[0][rank], "staged_bytes_total", rank) > 0


def test_a_port_in_use_stops_the_start_and_says_so(tmp_path: Path) -> None:
    port = free_ports(RANKS)
    (tmp_path / "taken.py").write_text(
        "import socket, subprocess, sys\n"
        f"with socket.socket() as taken:\n    taken.bind(('0.0.0.0', {port + 1})); taken.listen()\n"
        "    sys.exit(subprocess.run(sys.argv[1:]).returncode)\n"
    )
    environ = environment(STANDIN, STANDIN_VARIANT="C", TRTLLM_KVFIX_METRICS_PORT=str(port + 1))
    environ |= {"TRTLLM_KVFIX_RUNTIME_DIR": str(tmp_path / "run"), "TLLM_WORKER_USE_SINGLE_PROCESS": "1"}
    run = (sys.executable, "-m", "trtllm_kvfix", "run", "--")
    server = (sys.executable, "-m", "tensorrt_llm.commands.serve", "model")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "taken.py"), *run, *server],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environ,
        timeout=TIMEOUT_S,
    )
    assert done.returncode != 0
    assert f"metrics of rank 0 cannot be served on port {port + 1}" in done.stderr


def test_ranks_answer_without_the_fixes_as_well(tmp_path: Path) -> None:
    """A probe asks them, and MPI spawns them without our variables."""
    done = serve(tmp_path, free_ports(RANKS), TRTLLM_KVFIX_ENABLED="false")
    assert done.returncode == 0, done.stderr
    for seen in json.loads(done.stdout.splitlines()[-1]):
        for rank, page in enumerate(seen):
            assert value(page, "enabled", rank) == 0
            states = re.findall(r'^trtllm_kvfix_fix_info{.*state="(.*?)"', page, re.MULTILINE)
            assert set(states) == {"off"}
    assert all(f"rank {rank} of {RANKS} runs WITHOUT the fixes" in done.stderr for rank in range(RANKS))
