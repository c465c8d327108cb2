"""Engines side by side in one process, each with a loop of its own, under a stall of its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from tests.executor.test_graph_inputs import HANDS_TABLES_TO_GRAPHS, LORA, for_graphs
from tests.standin.serving import Server
from tests.standin.stall import Stall
from tests.threads import run_together
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.staging.place import current_place

SEED = int(os.environ.get("TORTURE_SEED", "1"))
SWITCH_INTERVAL_S = 1e-6  # CPython's own is 5 ms; a shorter one lets threads meet in the middle of our code

DRAFTING: dict[str, Any] = {"speculative_config": {}}


@dataclass(frozen=True)
class Serving:
    """How a variant is served. Upstream's fence covers the target's copies from D on, so a draft's are held there."""

    variant: str
    manager: str  # v1, v2, v2-by-layer, or lora: V1 with adapters on experts, whose graphs are held
    draft: bool = False

    @property
    def llm_args(self) -> dict[str, Any]:
        by_layer = {"enable_swa_scratch_reuse": True} if self.manager == "v2-by-layer" else {}
        v2 = {"kv_cache_config": {"use_kv_cache_manager_v2": True, **by_layer}} if self.manager.startswith("v2") else {}
        if self.manager == "lora":
            return LORA
        return {"max_num_tokens": 48, **v2, **(DRAFTING if self.draft else {})}

    @property
    def fix(self) -> str:
        return {"v1": "staged-offsets-v1", "lora": "graph-inputs"}.get(self.manager, "staged-offsets-v2")

    def stall(self, server: Server) -> Stall:
        return server.stall(draft=self.draft, replay=self.manager == "lora")

    def corrupt(self, server: Server) -> int:
        """Rows of block offsets, or of LoRA's tables, that reached attention or a graph wrong."""
        witness = server.draft_witness if self.draft else server.witness
        assert witness is not None and witness.steps > 0
        whats = ("lora slots", "lora weights") if self.manager == "lora" else ("block offsets",)
        return sum(len(witness.corrupt(what)) for what in whats)

    def __str__(self) -> str:
        return f"{self.variant}-{self.manager}"


RACY = [
    *(Serving(variant, "v1") for variant in ("A", "B", "B2", "C")),
    *(Serving(variant, "v2", draft=variant in "DF") for variant in ("B", "B2", "C", "D", "F")),
    *(Serving(variant, "v2-by-layer", draft=True) for variant in ("D", "F")),
    *(Serving(variant, "lora") for variant in HANDS_TABLES_TO_GRAPHS),
]
SERVINGS = [*RACY, *(Serving(variant, "v1") for variant in ("D", "F"))]


def needed(variant: str) -> list[str]:
    return [fix.id for fix in ALL if fix.expected.get(variant) is State.NEEDED and fix.id != "nixl-listener"]


@contextmanager
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def drawn(server: Server, random: Random, count: int, first_id: int, *, alike: bool) -> list[Any]:
    """Requests of drawn lengths. alike: some begin as others do, so that they reuse."""
    made = []
    for number in range(first_id, first_id + count):
        beginning = [random.randrange(3)] * random.choice((0, 4, 8)) if alike else []
        tokens = beginning + [1000 * number + position for position in range(random.randint(3, 24))]
        made.append(server.request(number, tokens, random.randint(2, 8)))
    return made


def serve_under_a_stall(server: Server, serving: Serving, seed: str, rounds: int, requests: int, alike: bool) -> None:
    random = Random(seed)
    with serving.stall(server) as stall:
        for turn in range(rounds):
            made = drawn(server, random, requests, 1 + turn * requests, alike=alike)
            answers = server.run(for_graphs(server, made) if serving.manager == "lora" else made)
            assert [each.error_msg for each in answers] == [None] * requests, seed
    assert stall.held > 0


def serve_side_by_side(
    serving: Serving, *, engines: int = 2, rounds: int = 6, requests: int = 12, alike: bool = False
) -> list[int]:
    """For each engine, what was read wrong."""
    if os.environ.get("STANDIN_DEVICE") == "torch":
        current_place()  # the first to ask opens the device, which waits for every stream that is held
    servers = [Server(serving.llm_args) for _ in range(engines)]
    works = [
        partial(serve_under_a_stall, server, serving, f"{SEED} {serving} {number}", rounds, requests, alike)
        for number, server in enumerate(servers)
    ]
    with threads_switch_often():
        run_together(*works)
    for server in servers:
        server.close()
    return [serving.corrupt(server) for server in servers]
