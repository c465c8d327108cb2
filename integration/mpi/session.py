"""Adds to the double of upstream what it does with MPI: a pool that forwards its own variables only, and ranks.

Needs Open MPI and mpi4py.
"""

from pathlib import Path

FILES = {
    "tensorrt_llm/_utils.py": """
from mpi4py import MPI

def mpi_comm():
    return MPI.COMM_WORLD
""",
    "tensorrt_llm/llmapi/mpi_session.py": """
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

from tensorrt_llm import _utils

class MpiPoolSession:
    def __init__(self, n_workers, forwarding=True):
        self.n_workers = n_workers
        env = {name: value for name, value in os.environ.items() if name.startswith(("TRTLLM", "TLLM")) and forwarding}
        self.mpi_pool = MPIPoolExecutor(max_workers=n_workers, path=sys.path, env=env)

    def submit_sync(self, task):
        return [each.result() for each in [self.mpi_pool.submit(task) for _ in range(self.n_workers)]]

    def shutdown(self):
        self.mpi_pool.shutdown()

def comm_session(task):
    "Rank 0's share runs in a thread of the main process, the others serve."
    with MPICommExecutor(MPI.COMM_WORLD) as pool:
        if pool is None:
            return None
        others = [pool.submit(task) for _ in range(MPI.COMM_WORLD.size - 1)]
        mine = ThreadPoolExecutor(1).submit(task)
        return [mine.result(), *(each.result() for each in others)]
""",
    # The program that is started; the pool imports it in every worker, too, before anything else.
    "main.py": """
import json
import os
import sys

import small_fixes
from mpi4py import MPI

odd_rank = os.environ.get("TRTLLM_TEST_ODD_RANK")
in_worker = __name__ != "__main__" or MPI.COMM_WORLD.size > 1
if in_worker and odd_rank == str(MPI.COMM_WORLD.rank):
    exec(os.environ["TRTLLM_TEST_ODD_CODE"])

def task():
    MPI.COMM_WORLD.barrier()  # one task for each worker
    from tensorrt_llm._torch.pyexecutor import py_executor
    import trtllm_kvfix

    try:
        started = py_executor.PyExecutor().start_worker()
    except Exception as error:
        started = f"{type(error).__name__}: {error}"
    from pathlib import Path
    from trtllm_kvfix.overlay import attest

    MPI.COMM_WORLD.barrier()  # so that nobody is gone when the others look
    return {
        "rank": MPI.COMM_WORLD.rank,
        "pid": os.getpid(),
        "started": started,
        "record": py_executor.record(),
        "fixes": {fix_id: each["word"] for fix_id, each in trtllm_kvfix.status()["fixes"].items()},
        "attested": sorted(each["rank"] for each in attest.live(Path("run")) if each["started"]),
        "variables": {name: value for name, value in os.environ.items() if name.startswith("TRTLLM_KVFIX")},
    }

if __name__ == "__main__":
    if sys.argv[1] == "comm":
        from tensorrt_llm.llmapi.mpi_session import comm_session

        results = comm_session(task)
    else:
        if "enable" in sys.argv:
            import trtllm_kvfix

            trtllm_kvfix.enable(fixes={"nixl-listener": "off"})
        from tensorrt_llm.llmapi.mpi_session import MpiPoolSession

        session = MpiPoolSession(int(sys.argv[1]), forwarding="bare" not in sys.argv)
        results = session.submit_sync(task)
        session.shutdown()
    if results is not None:
        print(json.dumps(sorted(results, key=lambda each: each["rank"])))
""",
}


def write(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
