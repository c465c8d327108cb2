"""Ranks."""

import os
import signal
import sys
from typing import Any


def mpi_comm() -> Any:
    """None in a process that MPI does not know of."""
    mpi = sys.modules.get("mpi4py.MPI")
    return None if mpi is None else mpi.COMM_WORLD


def mpi_rank() -> int:
    comm = mpi_comm()
    return 0 if comm is None else int(comm.Get_rank())


def mpi_world_size() -> int:
    comm = mpi_comm()
    return 1 if comm is None else int(comm.Get_size())


def mpi_allgather(obj: Any) -> list[Any]:
    comm = mpi_comm()
    return [obj] if comm is None else list(comm.allgather(obj))


def mpi_broadcast(obj: Any, root: int = 0) -> Any:
    comm = mpi_comm()
    return obj if comm is None else comm.bcast(obj, root)


def mpi_barrier() -> None:
    """Every rank comes here once for each task, so no rank takes two of them."""
    comm = mpi_comm()
    if comm is not None and comm.Get_size() > 1:
        comm.Barrier()


def hard_kill_on_rank_crash(world_size: int) -> None:
    """A rank that is alone has nobody who waits for it, and lives on."""
    if world_size > 1:
        os.kill(os.getpid(), signal.SIGKILL)
