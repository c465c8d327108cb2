"""A loop that dies leaves its record, whatever upstream does with the process next."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN, VARIANTS
from trtllm_kvfix.metrics import flight

ROOT = Path(__file__).resolve().parents[2]

# The loop dies of a request that cannot be scheduled any more. `ranks` are told to upstream once it serves.
DIES = """
import sys
from types import ModuleType, SimpleNamespace
import trtllm_kvfix
trtllm_kvfix.enable()
from tests.standin.serving import Server

variant, ranks, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = Server({"max_num_tokens": 48})
server.run(server.workload(4))
if ranks > 1:
    mpi = sys.modules["mpi4py.MPI"] = ModuleType("mpi4py.MPI")
    mpi.COMM_WORLD = SimpleNamespace(Get_size=lambda: ranks, Get_rank=lambda: 0)

class NoText(Exception):
    def __str__(self):
        raise KeyError("no text")

def schedule(self):
    raise {"error": RuntimeError("prompt of tenant A"), "no text": NoText(), "exit": SystemExit(3)}[how]

type(server.executor)._schedule = schedule
server.executor.enqueue_requests([server.request(99, [1, 2, 3])])
server.executor.worker_thread.join()
print("lived on", type(server.executor.event_loop_error).__name__, server.executor.event_loop.__name__)
"""


def die(folder: Path, variant: str, ranks: int = 1, how: str = "error") -> subprocess.CompletedProcess[str]:
    variables = environment(STANDIN, STANDIN_VARIANT=variant) | {"TRTLLM_KVFIX_RUNTIME_DIR": str(folder)}
    variables["PYTHONPATH"] += os.pathsep + str(ROOT)
    command = [sys.executable, "-c", DIES, variant, str(ranks), how]
    return fresh.run(command, cwd=ROOT, env=variables)


def record(folder: Path) -> dict[str, object]:
    (file,) = folder.glob("*.flight.json")
    assert file.stat().st_mode & 0o777 == 0o600
    found: dict[str, object] = json.loads(file.read_text())
    return found


def kinds(folder: Path) -> list[str]:
    return [entry["kind"] for entry in record(folder)["entries"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loop_that_dies_leaves_its_record_and_its_exception(tmp_path: Path, variant: str) -> None:
    ended = die(tmp_path / "run", variant)
    assert ended.stdout.startswith("lived on RuntimeError _executor_loop"), ended.stderr
    assert record(tmp_path / "run")["why"] == "RuntimeError: prompt of tenant A"
    assert kinds(tmp_path / "run").count("loop failed") == 1
    assert ended.stderr.count("the flight record is in") == 1


@pytest.mark.parametrize("variant", ["D", "F"])
def test_the_record_is_there_when_upstream_kills_a_rank_that_has_peers(tmp_path: Path, variant: str) -> None:
    ended = die(tmp_path / "run", variant, ranks=2)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert record(tmp_path / "run")["why"] == "RuntimeError: prompt of tenant A"
    (ring,) = (tmp_path / "run").glob("*.flight")
    assert "loop failed" in [entry["kind"] for entry in flight.read(ring.read_bytes())]


@pytest.mark.parametrize(
    ("how", "why"), [("no text", "NoText: its text cannot be made (KeyError)"), ("exit", "SystemExit: 3")]
)
def test_whatever_ends_the_loop_is_recorded(tmp_path: Path, how: str, why: str) -> None:
    ended = die(tmp_path / "run", "C", how=how)
    assert ended.stdout.startswith("lived on"), ended.stderr
    assert record(tmp_path / "run")["why"] == why


def test_in_a_folder_of_everybody_nothing_is_written(tmp_path: Path) -> None:
    """Another user may have put links there under any name."""
    folder, victim = tmp_path / "open", tmp_path / "victim"
    folder.mkdir()
    folder.chmod(0o777)
    victim.write_text("theirs")
    for pid in range(os.getpid(), os.getpid() + 500):
        (folder / f"{pid}.flight.json").symlink_to(victim)
    ended = die(folder, "C")
    assert ended.stdout.startswith("lived on RuntimeError"), ended.stderr
    assert victim.read_text() == "theirs"
    assert "the flight record could not be written" in ended.stderr


def test_records_of_dead_loops_are_kept_up_to_a_number(tmp_path: Path) -> None:
    for _ in range(2):
        die(tmp_path / "run", "C")
    assert len(list((tmp_path / "run").glob("*.flight.json"))) == 2
