"""Ranks that are MPI processes cut a batch together or not at all.

Needs Open MPI and mpi4py (Debian: openmpi-bin; pip: mpi4py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.mpi.test_ranks import OPEN_MPI, TIMEOUT_S, pytestmark  # noqa: F401  pytest reads the mark by its name

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 7
OPEN_MPI_5 = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
WHOLE = 40  # tokens of a batch that nobody has cut


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("times", "cut"), [(0, STEPS), (1, STEPS - 1), (10**6, 1)], ids=["never", "once", "always"])
def test_batches_are_the_same_on_all_ranks(ranks: int, times: int, cut: int) -> None:
    done = subprocess.run(
        ["mpirun", "-n", str(ranks), sys.executable, "-m", "integration.mpi.vote_rank", str(times)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, **OPEN_MPI, **OPEN_MPI_5},
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == ranks
    assert all(rank == found[0] for rank in found), "a batch, or who stands down, differs between ranks"
    sizes = [sum(size for _, size in batch) for batch in found[0]["batches"]]
    assert sum(size < WHOLE for size in sizes) == cut, sizes
    assert found[0]["stood_down"] == (times > 1)
