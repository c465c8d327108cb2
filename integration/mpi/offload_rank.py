"""One rank of the connector under mpirun: `mpirun -n N python -m integration.mpi.offload_rank`.

Ranks meet through upstream's own functions, here the stand-in's, as they do in a server. Rank 0 prints what all found.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from tests.offload.executor import own_pool
from tests.offload.rank_checks import CHECKS
from tests.offload.rank_scenarios import SCENARIOS, Here, bench_of, conversation
from trtllm_kvfix.native import open_device
from trtllm_kvfix.ranks import MpiRanks, RankSilent, ranks_here
from trtllm_kvfix.settings import load


def report(here: Here) -> None:
    found = {name: SCENARIOS[name](here) for name in CHECKS}
    told = here.ranks.gather(found)
    if here.ranks.rank == 0:
        print(json.dumps({name: [each[name] for each in told] for name in CHECKS}))  # noqa: T201  what the test reads


def die(here: Here) -> None:
    signalled(here, signal.SIGKILL)


def stop(here: Here) -> None:
    try:
        signalled(here, signal.SIGSTOP)
    except RankSilent as error:
        print(error, file=sys.stderr)  # noqa: T201  what the test reads
        MPI.COMM_WORLD.Abort(1)  # without it, the end of this process would wait for the rank that stands still


def signalled(here: Here, what: signal.Signals) -> None:
    """The chosen rank gets the signal while the others wait for what it says of its transfers."""
    Path(f"rank{here.ranks.rank}.pid").write_text(str(os.getpid()))
    with bench_of(here) as bench:
        bench.executor.submit(conversation(1))
        bench.executor.step()
        here.ranks.gather(None)  # each has written its file
        if here.is_chosen:
            side: Any = bench.worker.side
            side._ended_here = partial(os.kill, os.getpid(), what)
        bench.executor.run()


if __name__ == "__main__":
    ranks = ranks_here(load().agreement_timeout_s)
    assert isinstance(ranks, MpiRanks) and ranks.size == MPI.COMM_WORLD.size
    {"report": report, "die": die, "stop": stop}[sys.argv[1]](Here(ranks, open_device("cpu", ranks.rank), own_pool))
