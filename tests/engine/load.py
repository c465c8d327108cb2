"""Requests that share beginnings, come in waves, and have answers that no rounding can change."""

from dataclasses import replace
from functools import cache

import numpy as np

from tests.engine.dense import answer
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.loop import Engine
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.engine.model import Model
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.tools.bench.runs import random_model

# The best token of each answer leads by at least this: float32 logits are off by a fortieth of it, at most.
MARGIN = 1e-3
VOCABULARY = 256
LENGTH_MAX = 128
DOCUMENTS = 12
# Small enough for requests to be preempted, and for blocks to move between the tiers.
TIGHT = EngineConfig(
    tokens_per_block=8, blocks_primary=36, blocks_host=48, requests_max=6, tokens_max=64, length_max=LENGTH_MAX
)
ENGINES = {
    "native": TIGHT,
    "one by one": replace(TIGHT, manager="one-by-one"),
    "V2 tables": replace(TIGHT, layout="v2"),
    "no overlap": replace(TIGHT, overlap=False),
    "no graphs": replace(TIGHT, graphs=False),
    "the connector": replace(TIGHT, tier="connector"),
    "the connector and a late device": replace(TIGHT, tier="connector", late_every=1),
    "a late device": replace(TIGHT, late_every=1),
    "a device that is late now and then": replace(TIGHT, late_every=3),
}
REQUESTS = 150


class Load:
    """The same seed gives the same requests. `expected` is by request id."""

    def __init__(self, requests: int, seed: int = 0, adapters: int = 3) -> None:
        self.model: Model = random_model(seed, positions=LENGTH_MAX, vocabulary=VOCABULARY, adapters=adapters)
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._documents = [self._draw(40) for _ in range(DOCUMENTS)]
        self._adapters = adapters
        self.expected: dict[int, list[int]] = {}
        self._prompts = [self._made(number) for number in range(requests)]

    def requests(self) -> list[Request]:
        """Fresh ones: an engine writes into them."""
        return [replace_request(request) for request in self._prompts]

    def _made(self, number: int) -> Request:
        """Drawn again where two tokens of its answer come too close."""
        while True:
            document = self._documents[int(self._random.integers(DOCUMENTS))]
            kept = int(self._random.integers(16, len(document) + 1))
            prompt = document[:kept] + self._draw(int(self._random.integers(4, 30)))
            length = int(self._random.integers(4, 14))
            adapter = int(self._random.integers(self._adapters))
            tokens, margin = answer(self.model, prompt, length, adapter)
            if margin >= MARGIN:
                self.expected[number] = tokens
                return Request(number, prompt, length, adapter)

    def _draw(self, tokens: int) -> list[int]:
        drawn: list[int] = self._random.integers(0, VOCABULARY, tokens).tolist()
        return drawn


@cache
def usual_load() -> Load:
    return Load(REQUESTS)


def replace_request(request: Request) -> Request:
    return Request(request.request_id, request.prompt, request.max_new_tokens, request.adapter)


class Played:
    """A load through an engine: which answers were wrong, and what the engine has done for it."""

    def __init__(self, load: Load, config: EngineConfig, device: str = "cpu", model: Model | None = None) -> None:
        machine = open_machine(device)
        engine = Engine(machine, model or load.model, config)
        try:
            requests = load.requests()
            engine.run(requests)
            engine.cache.core.check_invariants()
            self.wrong = [r.request_id for r in requests if r.answer != load.expected[r.request_id]]
            self.counts = engine.scheduler.counts
            self.stats = engine.cache.core.get_kv_cache_stats().total
            tier = engine.cache.tier
            self.blocks_evicted = self.stats.blocks_offloaded if tier is None else tier.stats.evicted
            self.blocks_loaded = self.stats.blocks_onboarded if tier is None else tier.loads
            self.digest = engine.cache.core.digest()
            self.steps = engine.steps
            canary = engine.cache.canary
            self.canary = None if canary is None else canary.report()
        finally:
            engine.close()
            machine.close()


def without(config: EngineConfig, fix: str) -> EngineConfig:
    """One fix is off, in the order in which that matters."""
    return replace(with_fix(config, fix), off=frozenset((fix,)))


def with_fix(config: EngineConfig, fix: str) -> EngineConfig:
    """The same engine with all fixes."""
    layout = "v2" if fix == "staged-offsets-v2" else "v1"
    manager = "one-by-one" if fix == "computed-blocks" else config.manager
    return replace(config, layout=layout, manager=manager, late_every=1, late_copies=fix == "transfer-order")
