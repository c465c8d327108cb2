"""The connector in real MPI processes, one simulated device each, which meet through upstream's functions.

Needs Open MPI and mpi4py (Debian: openmpi-bin; pip: mpi4py).
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from integration.mpi.test_ranks import OPEN_MPI, TIMEOUT_S, pytestmark  # noqa: F401  pytest reads the mark by its name
from tests.offload.rank_checks import CHECKS, Reports
from tests.offload.rank_scenarios import CHOSEN
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN


def mpirun(ranks: int, task: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = environment(STANDIN, STANDIN_VARIANT="D", **OPEN_MPI, **variables)
    environ["TRTLLM_KVFIX_RUNTIME_DIR"] = str(folder / "run")
    return subprocess.run(
        ["mpirun", "-n", str(ranks), sys.executable, "-m", "integration.mpi.offload_rank", task],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environ,
        timeout=TIMEOUT_S,
    )


def ends(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process):
        return bool(select.select([process], [], [], TIMEOUT_S)[0])


@pytest.fixture(scope="module", params=[2, 4])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reports]:
    done = mpirun(request.param, "report", tmp_path_factory.mktemp("ranks"))
    assert done.returncode == 0, done.stderr
    found: dict[str, Reports] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("scenario", CHECKS)
def test_ranks_agree(scenario: str, reports: dict[str, Reports]) -> None:
    CHECKS[scenario](reports[scenario])


def test_a_rank_that_dies_takes_the_others_with_it(tmp_path: Path) -> None:
    """Before their wait for it is over, MPI's launcher ends them, and says who died."""
    ranks = 4
    done = mpirun(ranks, "die", tmp_path)
    assert done.returncode != 0
    assert f"rank {CHOSEN} " in done.stderr and "signal 9 (Killed)" in done.stderr, done.stderr
    pids = [int((tmp_path / f"rank{rank}.pid").read_text()) for rank in range(ranks)]
    assert all(ends(pid) for pid in pids)


def test_a_rank_that_stands_still_is_named_by_the_others(tmp_path: Path) -> None:
    done = mpirun(4, "stop", tmp_path, TRTLLM_KVFIX_AGREEMENT_TIMEOUT_S="15")
    assert done.returncode != 0
    assert f"rank {CHOSEN} of 4 did not answer within 15 s" in done.stderr, done.stderr
