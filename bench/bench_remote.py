"""The remote tier's transfers beside the store's own calls, one round of each in turn, on one machine over TCP.

Needs Mooncake Store: make test-mooncake. `own` is Mooncake's batch_put_from and batch_get_into in a process of its own,
with the same blocks in the same pool and calls as large as ours, `own_parts` the same with batch_put_from_multi_buffers
and batch_get_into_multi_buffers, `own_nicer` is `own` called by a thread that is as nice as ours, `own_sealed` is `own`
with objects as long as ours; `porter` is what the connector does, with checksums and asked from another process.
Contents are compared.

Ratios are to `own` or `own_parts`, whichever has the higher median, round by round. The faster of two in each round
would be what either reaches on its luckier turn: neither of them reaches that rate itself.

Mooncake's TCP transport passes at most 64 KiB to the kernel at a time. The seal behind a block of 256 KiB is thus a
fifth piece, and `own_sealed` shows what that costs. MC_TCP_SLICE_SIZE changes nothing about it: with 1 MiB at both ends
there are as many calls of the kernel as with 64 KiB.

cpu_ms_per_gb is the CPU time of both ends, the store's node and whoever asks it. Where a transfer takes all cores that
there are, rates are in inverse proportion to it.
"""

import argparse
import json
import mmap
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np
from measure import REPOSITORY, RESULTS, Row, Summary, report
from numpy.typing import NDArray

sys.path.insert(0, str(REPOSITORY))
from integration.mooncake.nodes import MOONCAKE, Master, Node, client_of, until
from trtllm_kvfix.native import HostPool, open_device
from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote.messages import Get, Message, Outcome, Outcomes, Put, Spec
from trtllm_kvfix.offload.remote.porter_process import NICER
from trtllm_kvfix.offload.remote.worker import PorterHandle

Way = Callable[[str, int], tuple[float, float]]
MIB = 1 << 20
BLOCK_BYTES = (256 << 10, MIB, 4 * MIB)
BURST_BYTES = 256 * MIB
CALL_BYTES = 32 * MIB
POLL_S = 2e-4
SEGMENT_BYTES = 2 << 30  # more than what is put in one round
# Put or get the first slots under numbered names, as each line asks, and say how long it took.
OWN = """
import json, mmap, os, sys, time
import numpy as np
from mooncake.store import MooncakeDistributedStore
master, fd, block, slot_bytes, slots, call, nicer = sys.argv[1], *map(int, sys.argv[2:])
pool = np.frombuffer(mmap.mmap(fd, slot_bytes * slots), np.uint8)
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
assert store.register_buffer(pool.ctypes.data, pool.nbytes) == 0
os.nice(nicer)  # this thread alone: the store's own run already
print("up", flush=True)
for line in sys.stdin:
    what, names, chosen, parts, extra = json.loads(line)
    addresses, step = [pool.ctypes.data + slot * slot_bytes for slot in chosen], max(call // block, 1)
    do, good = (store.batch_put_from, 0) if what == "put" else (store.batch_get_into, block + extra)
    sizes = [block + extra] * len(names)
    if parts:
        do = store.batch_put_from_multi_buffers if what == "put" else store.batch_get_into_multi_buffers
        addresses, sizes = [[one] for one in addresses], [[one] for one in sizes]
    began = time.perf_counter()
    codes = []
    for at in range(0, len(names), step):
        codes += do(names[at:at + step], addresses[at:at + step], sizes[at:at + step])
    took = time.perf_counter() - began
    assert codes == [good] * len(names), codes
    print(took, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    arguments = parser.parse_args()
    if not MOONCAKE.is_dir():
        print("left out: Mooncake Store is not there; make test-mooncake fetches it")
        return
    sys.path.append(str(MOONCAKE))
    report("remote.csv", measured(3 if arguments.quick else arguments.rounds), arguments.results)


def measured(rounds: int) -> Iterator[Row]:
    for block_bytes in BLOCK_BYTES:
        with a_store() as (master, node):
            run, janitor = Run(master.address, block_bytes, node), client_of(master.address)
            speeds: dict[tuple[str, str], list[float]] = {}
            costs: dict[tuple[str, str], list[float]] = {}
            for number in range(rounds + 1):
                for way in in_turn((run.own, run.own_parts, run.own_nicer, run.own_sealed, run.porter), number):
                    for what in ("put", "get"):
                        seconds, cpu_s = way(what, number)
                        if number:  # the first round opens connections
                            speeds.setdefault((what, way.__name__), []).append(BURST_BYTES / seconds / 1e9)
                            costs.setdefault((what, way.__name__), []).append(1e3 * cpu_s / (BURST_BYTES / 1e9))
                janitor.remove_all(True)
            janitor.close()
            run.close()
        for (what, name), values in speeds.items():
            best = max((speeds[what, own] for own in ("own", "own_parts")), key=median)
            ratio = Summary.of([ours / theirs for ours, theirs in zip(values, best, strict=True)])
            yield Row(f"remote_{what}", block_bytes, name, "gbps", Summary.of(values), ratio)
            yield Row(f"remote_{what}", block_bytes, name, "cpu_ms_per_gb", Summary.of(costs[what, name]))


@contextmanager
def a_store() -> Iterator[tuple[Master, Node]]:
    """A master for each node: for some seconds it sends puts to a node that is gone, and they fail."""
    master = Master()
    try:
        with closing(Node(master.address, SEGMENT_BYTES)) as node:
            yield master, node
    finally:
        master.kill()


def in_turn(ways: tuple[Way, ...], number: int) -> tuple[Way, ...]:
    """Each comes first as often as any other, since what ran before makes a difference."""
    first = number % len(ways)
    turned = ways[first:] + ways[:first]
    return turned if number // len(ways) % 2 else turned[::-1]


def cpu_s(*processes: int) -> float:
    tasks = (task for process in processes for task in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Run:
    """Slots of the first half are put, those of the second are filled again."""

    def __init__(self, master: str, block_bytes: int, node: Node) -> None:
        self._node = node.process.pid
        self.count = BURST_BYTES // block_bytes
        self.pool = HostPool(
            open_device("cpu"), host_bytes=2 * BURST_BYTES + 2 * MIB, block_bytes=block_bytes, tail_bytes=SEAL_BYTES,
            shared=True,
        )  # fmt: skip
        blocks = blocks_of(self.pool)
        self.sent, self.come = blocks[: self.count], blocks[self.count : 2 * self.count]
        self.sent[:] = np.random.default_rng(1).integers(0, 256, self.sent.shape, dtype=np.uint8)
        spec = Spec(
            -1, self.pool.descriptor, block_bytes, self.pool.slot_bytes, self.pool.slots, 0, 1, master, "tcp",
            "127.0.0.1", 0,
        )  # fmt: skip
        self.client = PorterHandle(spec, 60)
        until(lambda: self.client.is_up, self.client.text)
        self.process, self.nicer = self._started(master, 0), self._started(master, NICER)

    def _started(self, master: str, nicer: int) -> "subprocess.Popen[str]":
        pool = self.pool
        numbers = pool.descriptor, pool.block_bytes, pool.slot_bytes, pool.slots, CALL_BYTES, nicer
        process = subprocess.Popen(
            [sys.executable, "-c", OWN, master, *map(str, numbers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            pass_fds=[pool.descriptor], env=os.environ | {"PYTHONPATH": str(MOONCAKE)},
        )  # fmt: skip
        assert line_of(process) == "up"
        return process

    def own(self, what: str, number: int) -> tuple[float, float]:
        return self._own(self.process, what, f"own {number}")

    def own_parts(self, what: str, number: int) -> tuple[float, float]:
        return self._own(self.process, what, f"parts {number}", parts=True)

    def own_nicer(self, what: str, number: int) -> tuple[float, float]:
        return self._own(self.nicer, what, f"nicer {number}")

    def own_sealed(self, what: str, number: int) -> tuple[float, float]:
        return self._own(self.process, what, f"sealed {number}", extra=SEAL_BYTES)

    def _own(
        self, process: "subprocess.Popen[str]", what: str, name: str, *, parts: bool = False, extra: int = 0
    ) -> tuple[float, float]:
        """Seconds that it took, and seconds of CPU time."""
        names = [f"{name} {at}" for at in range(self.count)]
        assert process.stdin is not None
        self.come[:] = 0
        before = cpu_s(self._node, process.pid)
        process.stdin.write(json.dumps([what, names, self._slots(what), parts, extra]) + "\n")
        process.stdin.flush()
        took = float(line_of(process))
        return self._compared(what, took, cpu_s(self._node, process.pid) - before)

    def porter(self, what: str, number: int) -> tuple[float, float]:
        keys = tuple(number.to_bytes(16, "little") + at.to_bytes(16, "little") for at in range(self.count))
        self.come[:] = 0
        process = self.client.process_id
        assert process is not None
        before, began = cpu_s(self._node, process), perf_counter()
        kind = Put if what == "put" else Get
        assert self.client.ask(kind(number, keys, tuple(self._slots(what))))
        answers: list[tuple[Message, Outcomes]] = []
        while not answers:
            sleep(POLL_S)  # as an engine's loop looks now and then
            answers = self.client.take_answered()
        took = perf_counter() - began
        assert_whole(f"{what} {number}", answers[0][1])
        return self._compared(what, took, cpu_s(self._node, process) - before)

    def close(self) -> None:
        for process in (self.process, self.nicer):
            process.kill()
            process.communicate()
        self.client.close(10)
        self.pool.close()

    def _slots(self, what: str) -> list[int]:
        return list(range(self.count) if what == "put" else range(self.count, 2 * self.count))

    def _compared(self, what: str, took: float, cpu: float) -> tuple[float, float]:
        assert what == "put" or np.array_equal(self.sent, self.come)
        return took, cpu


def assert_whole(asked: str, answer: Outcomes) -> None:
    came = ", ".join(f"{count} {outcome.name}" for outcome, count in Counter(answer.outcomes).items())
    assert came and set(answer.outcomes) == {Outcome.WHOLE}, f"{asked}: {came or 'nothing'} {answer.error}".strip()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def blocks_of(pool: HostPool) -> NDArray[np.uint8]:
    """One in a row, without what is behind it."""
    pages = np.frombuffer(mmap.mmap(pool.descriptor, pool.bytes), np.uint8)
    return pages.reshape(pool.slots, pool.slot_bytes)[:, : pool.block_bytes]


if __name__ == "__main__":
    main()
