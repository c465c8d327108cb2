"""How long a lone prompt takes whose blocks are in a remote store, in an engine that has nothing else to do.

Upstream's loop turns without a pause until the blocks are there. The arm `rests` is ours: a turn that computes nothing
sleeps while the store owes an answer. In the arm `turns` it does not. Arms take turns, and each round is an engine of
its own, in a process of its own, with the porter's real process. Its store is a folder of files, and answers at once.

served_ms       from the prompt's arrival until its last token
loaded_share    of the prompt's blocks, those that came from the store in time
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from types import MethodType

from measure import REPOSITORY, RESULTS, Row, Summary, report

from tests.offload.conftest import BLOCK_BYTES, Bench
from tests.offload.executor import TOKENS_PER_BLOCK
from tests.offload.remote.porter_double import sealed
from tests.offload.remote.test_failing_objects import STORE, until
from tests.offload.upstream_double import Request
from trtllm_kvfix.native import open_device
from trtllm_kvfix.offload.worker import OffloadWorker

ARMS = ("rests", "turns")
TOKENS = 48
BLOCKS = (TOKENS - 1) // TOKENS_PER_BLOCK
HOST_BLOCKS, WAIT_MS = 256, 1000


def served(bench: Bench, number: int) -> tuple[float, int]:
    """Milliseconds, and how many tokens were loaded."""
    executor = bench.executor
    executor.forget_device_cache()
    loaded, began = executor.loaded_tokens, perf_counter()
    executor.submit(Request(number, list(range(100, 100 + TOKENS)), max_new_tokens=2))
    executor.run()
    return 1e3 * (perf_counter() - began), executor.loaded_tokens - loaded


def one_round(arm: str) -> None:
    """In a process of its own: prints what the second prompt took, which finds its blocks in the store alone."""
    bench = Bench(open_device("cpu", 1))
    side: OffloadWorker = bench.worker.side
    if arm == "turns":
        side.carrier.rest = MethodType(lambda _: None, side.carrier)  # type: ignore[union-attr,method-assign]
    until(lambda: side.carrier.porter.is_up)  # type: ignore[union-attr]
    served(bench, 1)
    while len(bench.scheduler.side.ledger):
        bench.executor.step()
    bench.index.drop()
    took_ms, loaded = served(bench, 2)
    print(took_ms, loaded / (BLOCKS * TOKENS_PER_BLOCK), flush=True)
    bench.worker.shutdown()
    os._exit(0)


def measured(rounds: int) -> Iterator[Row]:
    figures: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        for arm in ARMS:
            with tempfile.TemporaryDirectory() as folder:
                figures[arm].append(in_a_process(arm, Path(folder)))
    for arm in ARMS:
        for metric, values in zip(("served_ms", "loaded_share"), zip(*figures[arm], strict=True), strict=True):
            yield Row(f"{BLOCKS} blocks", TOKENS_PER_BLOCK, arm, metric, Summary.of(values))


def in_a_process(arm: str, folder: Path) -> list[float]:
    for name in ("mooncake", "objects"):
        (folder / name).mkdir()
    (folder / "mooncake" / "store.py").write_text(STORE)
    prefix = "TRTLLM_KVFIX_OFFLOAD_"
    environ = {
        "PYTHONPATH": os.pathsep.join((str(folder), str(REPOSITORY))),
        f"{prefix}HOST_BYTES": str(HOST_BLOCKS * sealed(BLOCK_BYTES)),
        f"{prefix}REMOTE_KIND": "mooncake", f"{prefix}REMOTE_MASTER": "here:1", f"{prefix}REMOTE_HOST": "127.0.0.1",
        f"{prefix}REMOTE_MODEL": "a model", f"{prefix}REMOTE_MIN_REUSE_BLOCKS": "2",
        f"{prefix}REMOTE_LOOKUP_WAIT_MS": str(WAIT_MS),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, "--round", arm], env=os.environ | environ, capture_output=True, text=True, check=True
    )
    return [float(number) for number in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--round", choices=ARMS, help="one round of this arm, in this process")
    arguments = parser.parse_args()
    if arguments.round:
        one_round(arguments.round)
    report("idle_fetch.csv", measured(arguments.rounds), arguments.results)


if __name__ == "__main__":
    main()
