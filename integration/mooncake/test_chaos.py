"""Parts of a store are stopped, killed and started again, and its bytes flipped, while three engines serve.

Whatever happens: no read of attention finds another value than it should, every answer to a prompt is the same, nobody
waits for long, and in the end nothing is held and the store brings blocks again.

KVFIX_CHAOS_SECONDS sets for how long, and KVFIX_CHAOS_SEED what happens.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

import pytest

from integration.mooncake.engines import Engine, MakeEngine
from integration.mooncake.nodes import MOONCAKE, Master, Node, until

SECONDS = float(os.environ.get("KVFIX_CHAOS_SECONDS", "8"))
SEED = int(os.environ.get("KVFIX_CHAOS_SEED", "1"))
TIMEOUT_S = 2
FETCHED_WITHIN_S = 90  # longer than blocks are left alone whose reads have failed
WAIT_S_MAX = 10 * TIMEOUT_S  # of one request, on a machine that does other things as well
MODELS = ("a model", "a model", "another model")
HOST_BLOCKS = 48  # of a dozen conversations, four fit
TAMPER = Path(__file__).with_name("tamper.py")
PROMPTS = [[900 + number, *range(1, 44)] for number in range(12)]  # too short to measure prefill: all is fetched


@dataclass
class Chaos:
    master: Master
    make_engine: MakeEngine
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    acts: int = 0
    served: int = 0
    reads: int = 0
    longest_s: float = 0.0
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)  # of engines that are gone

    def __post_init__(self) -> None:
        self.nodes = [Node(self.master.address) for _ in range(2)]
        self.engines = [self.engine(number) for number in range(len(MODELS))]

    def engine(self, number: int) -> Engine:
        return self.make_engine(host_blocks=HOST_BLOCKS, timeout_s=TIMEOUT_S, lookup_wait_ms=200, model=MODELS[number])

    def serve(self, requests: int) -> None:
        """Answers must not depend on where blocks came from."""
        for _ in range(requests):
            engine, tokens = self.chance.choice(self.engines), self.chance.choice(PROMPTS)
            began = monotonic()
            found = engine.serve(tokens)
            self.longest_s = max(self.longest_s, monotonic() - began)
            assert found.answer == self.answers.setdefault(tuple(tokens), found.answer)
            self.served += 1
            self.reads += found.reads

    def act(self) -> None:
        act = self.chance.choice(
            [self.stop_a_node, self.kill_a_node, self.stop_a_porter, self.kill_a_porter, self.stop_the_master,
             self.kill_the_master, self.flip, self.flip, self.forget, self.kill_an_engine]
        )  # fmt: skip
        act()
        self.acts += 1

    def stop_a_node(self) -> None:
        self._stopped(self.chance.choice(self.nodes).process.pid)

    def stop_the_master(self) -> None:
        self._stopped(self.master.process.pid)

    def stop_a_porter(self) -> None:
        self._stopped(self.chance.choice(self.engines).ask("porter")[0])

    def _stopped(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                self.serve(6)
            finally:
                os.kill(pid, signal.SIGCONT)

    def kill_a_porter(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.chance.choice(self.engines).ask("porter")[0], signal.SIGKILL)

    def kill_a_node(self) -> None:
        at = self.chance.randrange(len(self.nodes))
        self.nodes[at].process.kill()
        self.serve(6)
        self.nodes[at].close()
        self.nodes[at] = Node(self.master.address)

    def kill_the_master(self) -> None:
        self.master.kill()
        try:
            self.serve(6)
        finally:
            self.master.come_back()

    def kill_an_engine(self) -> None:
        at = self.chance.randrange(len(self.engines))
        self._count(self.engines[at])
        self.engines[at].kill()
        self.serve_others(at)
        self.engines[at] = self.engine(at)

    def serve_others(self, at: int) -> None:
        others, self.engines = self.engines, [one for number, one in enumerate(self.engines) if number != at]
        try:
            self.serve(4)
        finally:
            self.engines = others

    def forget(self) -> None:
        """Have an engine ask the store again."""
        self.chance.choice(self.engines).ask("forget_host_tier")

    def flip(self) -> None:
        """A bit of each block that is there; of none where the store cannot be asked now."""
        command = [sys.executable, str(TAMPER), str(MOONCAKE), self.master.address,
                   f"127.0.0.1:{self.master.metrics_port}", "flip"]  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=10)
        self.forget()

    def _count(self, engine: Engine) -> None:
        for name, value in engine.ask("counts").items():
            self.totals[name] = self.totals.get(name, 0.0) + value

    def fetched_blocks(self) -> float:
        name = "offload_remote_fetched_blocks"
        return self.totals.get(name, 0.0) + sum(float(engine.ask("counts")[name]) for engine in self.engines)

    def end(self) -> None:
        for engine in self.engines:
            assert engine.ask("blocks_in_use") == 0
            self._count(engine)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.fixture
def chaos(master: Master, make_engine: MakeEngine) -> Iterator[Chaos]:
    made = Chaos(master, make_engine)
    yield made
    made.close()


def test_three_engines_outlive_whatever_happens_to_their_store(chaos: Chaos) -> None:
    began = monotonic()
    while monotonic() < began + SECONDS or not (chaos.acts >= 3 and chaos.fetched_blocks()):
        assert monotonic() < began + SECONDS + FETCHED_WITHIN_S, "the store brings nothing"
        chaos.serve(12)
        chaos.act()
    chaos.end()
    for engine in chaos.engines:
        comes_again(engine)
    told = f"{chaos.served} requests, {chaos.reads} reads, {chaos.acts} acts, {chaos.longest_s:.1f} s, {chaos.totals}"
    print(told)  # noqa: T201  pytest shows it where this fails
    assert chaos.reads > chaos.served and chaos.totals["offload_remote_fetched_blocks"] > 0, told
    assert chaos.longest_s < WAIT_S_MAX, told


def comes_again(engine: Engine) -> None:
    """The store brings a prompt that no part of it has seen."""
    tokens = [engine.process.pid, *range(1, 44)]
    forget: Callable[[], object] = partial(engine.ask, "forget_host_tier")
    engine.serve(tokens)
    forget()

    def said() -> str:
        return f"the store brings nothing any more: {engine.ask('counts')}"

    until(lambda: engine.serve(tokens).loaded > 0, said, forget, FETCHED_WITHIN_S)
    assert engine.ask("blocks_in_use") == 0
