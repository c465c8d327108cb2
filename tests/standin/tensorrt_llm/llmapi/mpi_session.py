"""Tasks reach the ranks through a session (surface 7.2)."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any

from .._standin.variant import NAME, VARIABLE_FOR_WORKERS


def _futures() -> Any:
    try:
        return import_module("mpi4py.futures")  # by name, because type checkers need not have it
    except ImportError:
        return None  # a single process needs none


futures = _futures()


class MpiSession(ABC):
    n_workers: int

    @abstractmethod
    def submit(self, task: Callable[..., Any], *args: Any) -> list["Future[Any]"]: ...

    def submit_sync(self, task: Callable[..., Any], *args: Any) -> list[Any]:
        return [future.result() for future in self.submit(task, *args)]

    @abstractmethod
    def shutdown(self) -> None: ...


class SingleProcessSession(MpiSession):
    """Rank 0 in a thread of this process."""

    n_workers = 1

    def submit(self, task: Callable[..., Any], *args: Any) -> list["Future[Any]"]:
        with ThreadPoolExecutor(max_workers=1) as pool:
            return [pool.submit(task, *args)]

    def shutdown(self) -> None:
        """Its thread has ended with the task."""


class MpiPoolSession(MpiSession):
    """Spawns the ranks. Of the variables they get those that begin with TRTLLM or TLLM, and overrides; and sys.path."""

    def __init__(self, n_workers: int, env_overrides: dict[str, str] | None = None) -> None:
        self.n_workers = n_workers
        self.mpi_pool: Any = None
        self._env_overrides = env_overrides or {}
        self._start_mpi_pool()

    def _start_mpi_pool(self) -> None:
        if futures is None:
            raise RuntimeError("mpi4py is not installed; with one rank set TLLM_WORKER_USE_SINGLE_PROCESS=1")
        env = {name: value for name, value in os.environ.items() if name.startswith(("TRTLLM", "TLLM"))}
        env |= self._env_overrides
        env[VARIABLE_FOR_WORKERS] = NAME  # the stand-in's own: a real installation is what it is in every rank
        self.mpi_pool = futures.MPIPoolExecutor(max_workers=self.n_workers, path=sys.path, env=env)

    def submit(self, task: Callable[..., Any], *args: Any) -> list["Future[Any]"]:
        return [self.mpi_pool.submit(task, *args) for _ in range(self.n_workers)]

    def shutdown(self) -> None:
        self.mpi_pool.shutdown(wait=True)


class MpiCommSession(MpiSession):
    """Under mpirun: rank 0's task runs in a thread of the process that asks, the others' where mpirun put them.

    Every rank makes one; ranks other than 0 serve until it is shut down, and come out of the constructor then.
    """

    def __init__(self) -> None:
        if futures is None:
            raise RuntimeError("mpi4py is not installed; mpirun needs it")
        world = import_module("mpi4py.MPI").COMM_WORLD
        self.n_workers = world.Get_size()
        self._thread_pool = ThreadPoolExecutor(max_workers=1)
        self._comm_executor = futures.MPICommExecutor(world, root=0)
        self.mpi_pool = self._comm_executor.__enter__()

    def submit(self, task: Callable[..., Any], *args: Any) -> list["Future[Any]"]:
        others = [self.mpi_pool.submit(task, *args) for _ in range(self.n_workers - 1)]
        return [self._thread_pool.submit(task, *args), *others]

    def shutdown(self) -> None:
        self._thread_pool.shutdown()
        self._comm_executor.__exit__(None, None, None)
