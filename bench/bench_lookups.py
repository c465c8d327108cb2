"""What lookups in the remote store cost the executor's thread, with a master that is far away.

The porter is the real process, behind a store whose lookups take a while: the way to the master, and a time for each
object. All prompts are there, and arrive together. Between iterations the thread sleeps, as a step of the device takes
it. No Mooncake Store and no device is needed. What the connector does in an iteration counts together, for one rank:
how ranks agree is not in it.

longest_ms      the connector's part of the longest iteration, by the wall
longest_cpu_ms  likewise, as far as the thread had a CPU: others on the machine count little
all_cpu_ms      its part of all iterations, until all prompts have been answered
answered_ms     from the arrival until the last prompt may be scheduled
loaded_share    of the prompts' blocks, those that the connector has promised to load
waiting_ms      beside it: one lookup after the other, each awaited
"""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep, thread_time
from types import SimpleNamespace
from typing import Any, NamedTuple

from measure import RESULTS, Row, Summary, report

from trtllm_kvfix.native import HostPool, open_device
from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.ledger import Ended, Link, Step
from trtllm_kvfix.offload.remote.keys import array_of
from trtllm_kvfix.offload.remote.messages import Look, Spec
from trtllm_kvfix.offload.remote.scheduler import HeldBack, remote_scheduler
from trtllm_kvfix.offload.remote.worker import PorterHandle, StoreHere
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload_section import OffloadSettings, RemoteSettings
from trtllm_kvfix.ranks import OneRank

BLOCK, BLOCK_BYTES = 32, 64
STEP_S = 0.01  # of the device, between two iterations
UP_S_MAX, POLL_S = 30.0, 1e-4
AWAY_S = (0.0, 0.008)
OBJECT_S = 2.6e-6  # Mooncake's master on loopback: 32,768 objects took 85 ms
# As `mooncake.store`, for the porter: it has everything.
STORE = """
import os, time

class MooncakeDistributedStore:
    def setup(self, *_): return 0
    def register_buffer(self, *_): return 0
    def batch_is_exist(self, names):
        time.sleep(float(os.environ["AWAY_S"]) + len(names) * float(os.environ["OBJECT_S"]))
        return [1] * len(names)
"""


class Case(NamedTuple):
    prompts: int
    blocks: int
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.prompts} x {self.blocks} blocks, {self.ranks} ranks"


CASES = (Case(32, 16, 1), Case(32, 64, 1), Case(32, 256, 8), Case(1, 4096, 8), Case(4, 4096, 8), Case(32, 4096, 8))


@dataclass
class Request:
    py_request_id: int
    tokens: tuple[int, ...]  # upstream's are not Python's, so its garbage collection must not walk these
    is_context_init_state: bool = True
    lora_task_id: None = None
    cache_salt_id: None = None
    py_multimodal_data: None = None
    sampling_config: Any = field(default_factory=lambda: SimpleNamespace(beam_width=1))

    @property
    def request_id(self) -> int:
        return self.py_request_id

    @property
    def prompt_len(self) -> int:
        return len(self.tokens)

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)


@contextmanager
def a_porter(case: Case, away_s: float) -> Iterator[tuple[PorterHandle, int]]:
    """The porter, and how many slots its pool has."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mooncake").mkdir()
        (Path(folder) / "mooncake" / "store.py").write_text(STORE)
        sys.path.insert(0, folder)
        os.environ.update({"AWAY_S": str(away_s), "OBJECT_S": str(OBJECT_S)})
        slots = 2 * case.prompts * case.blocks
        pool = HostPool(
            open_device("cpu"), host_bytes=slots * 2 * BLOCK_BYTES, block_bytes=BLOCK_BYTES, tail_bytes=SEAL_BYTES,
            shared=True,
        )  # fmt: skip
        spec = Spec(
            -1, pool.descriptor, BLOCK_BYTES, pool.slot_bytes, pool.slots, 0, case.ranks, "here:1", "tcp", "127.0.0.1",
            0,
        )  # fmt: skip
        porter = PorterHandle(spec, 60)
        try:
            until = perf_counter() + UP_S_MAX
            while not porter.is_up:
                assert perf_counter() < until, porter.text
                sleep(POLL_S)
            yield porter, pool.slots
        finally:
            porter.close(10)
            pool.close()
            sys.path.remove(folder)


class Executor:
    """Upstream's loop, as far as the connector has a part in it."""

    def __init__(self, porter: PorterHandle, slots: int, ranks: int) -> None:
        self.link = Link()
        self.link.slots, self.link.store = slots, StoreHere(porter, b"root", BLOCK_BYTES, ranks)
        settings = OffloadSettings(host_bytes=1, log_every_requests=0, remote=RemoteSettings(kind="mooncake"))
        self.side = remote_scheduler(settings, BLOCK, self.link, Switches(None))
        self.side.require_tier()
        self.gate = HeldBack(self.link, OneRank())
        self.loaded_blocks = 0
        self.blocks = 0  # of the device

    def serve(self, requests: list[Request]) -> tuple[list[tuple[float, float]], float]:
        """Seconds of each iteration, by the wall and of a CPU, and until the last request has been scheduled."""
        waiting, took, began = list(requests), list[tuple[float, float]](), perf_counter()
        while waiting or len(self.link.ledger):
            begin = perf_counter(), thread_time()
            for request in self.gate.shown(requests):
                if request in waiting:
                    waiting.remove(request)
                    self.admit(request)
                    answered = perf_counter() - began
            step = self.side.build_connector_meta(None)
            took.append((perf_counter() - begin[0], thread_time() - begin[1]))
            self.end(step)
            sleep(STEP_S)
        return took, answered

    def admit(self, request: Request) -> None:
        tokens, _ = self.side.get_num_new_matched_tokens(request, 0)
        count = -(-len(request.tokens) // BLOCK)
        self.side.update_state_after_alloc(request, [list(range(self.blocks, self.blocks + count))])
        self.blocks += count
        self.loaded_blocks += tokens // BLOCK

    def end(self, step: Step) -> None:
        ledger = self.link.ledger
        for job in step.jobs:
            ledger.queue(job)
            ledger.end_here(Ended(job.number, ""))
        for ended in ledger.take_ended_here():
            ledger.end_everywhere(ended, has_scheduler=True)


def prompts_of(case: Case, round_: int) -> list[Request]:
    """A prompt has the blocks and a token."""
    length = case.blocks * BLOCK + 1
    return [Request(number, (round_ * case.prompts + number, *range(1, length))) for number in range(case.prompts)]


def waiting_s(porter: PorterHandle, requests: list[Request]) -> float:
    began = perf_counter()
    for request in requests:
        tokens = array_of(request.tokens[: len(request.tokens) // BLOCK * BLOCK])
        porter.ask(Look(request.py_request_id, b"start", (), BLOCK, tokens))
        while not porter.take_found():
            sleep(POLL_S)
    return perf_counter() - began


def measured(cases: tuple[Case, ...], rounds: int) -> Iterator[Row]:
    for case in cases:
        for away_s in AWAY_S:
            figures: dict[str, list[float]] = {}
            with a_porter(case, away_s) as (porter, slots):
                for round_ in range(rounds):
                    executor, requests = Executor(porter, slots, case.ranks), prompts_of(case, round_)
                    gc.collect()  # else it looks at the new prompts, which a server keeps elsewhere, during a step
                    took, answered = executor.serve(requests)
                    found = {
                        "longest_ms": 1e3 * max(wall for wall, _ in took),
                        "longest_cpu_ms": 1e3 * max(cpu for _, cpu in took),
                        "all_cpu_ms": 1e3 * sum(cpu for _, cpu in took), "answered_ms": 1e3 * answered,
                        "loaded_share": executor.loaded_blocks / (case.prompts * case.blocks),
                        "waiting_ms": 1e3 * waiting_s(porter, requests),
                    }  # fmt: skip
                    for metric, value in found.items():
                        figures.setdefault(metric, []).append(value)
            for metric, values in figures.items():
                yield Row(case.name, BLOCK, f"master {1e3 * away_s:g} ms away", metric, Summary.of(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="3 rounds without the longest prompts")
    arguments = parser.parse_args()
    cases = tuple(case for case in CASES if case.prompts * case.blocks < 10_000) if arguments.quick else CASES
    report("lookups.csv", measured(cases, 3 if arguments.quick else arguments.rounds), arguments.results)


if __name__ == "__main__":
    main()
