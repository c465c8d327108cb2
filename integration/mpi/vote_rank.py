"""One rank of a batch, started by test_vote.py under mpirun. Rank 0 prints the batches of all ranks, step by step."""

import json
import sys

import pytest
from mpi4py import MPI

from tests.fixes.test_vote import FIXES, budget_steps, failing_on_rank_0


def main(times: int) -> None:
    """Rank 0's own code fails `times` times."""
    comm = MPI.COMM_WORLD
    with pytest.MonkeyPatch.context() as monkeypatch:
        failing_on_rank_0(monkeypatch, f"{FIXES}.token_budget.fix.batch_tokens", times)
        seen, fuse = budget_steps(comm.Get_rank(), comm, chunked=True, split=True, changes=lambda _: True)
    found = comm.gather({"batches": seen, "stood_down": fuse.blown})
    if comm.Get_rank() == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
