"""`python -m integration.upstream.native_load --tree DIR`: random servers and requests, ours beside upstream's books.

Ours must be right in every batch, never run out of blocks that its scheduler promised, and reuse what it promised.
How many prompt tokens are computed is compared with upstream's manager under the same arrivals.
"""

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from integration.upstream.native_crowds import ERAS, WIDE, crowd
from integration.upstream.running import Result, apart
from integration.upstream.scenarios import ALL, Scenario
from integration.upstream.server import Server, Shape
from trtllm_kvfix.managers.layout import held_most

REQUESTS = 120
ITERATIONS_MAX = 3000
LONGEST = 64  # tokens of a sequence


class Promises:
    """The notes on requests, as the books call them: a request reuses exactly what it was promised a moment before."""

    def __init__(self, requests: Any, core: Any, ahead: int | None) -> None:
        self._requests = requests
        self._core = core
        self._ahead = ahead
        self._noted: list[Any] = []
        self._told: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requests, name)

    def add(self, prompt: Any, *how: Any) -> None:
        self._requests.add(prompt, *how)
        self._noted.append(prompt.sequence)

    def settle(self, *how: Any, **more: Any) -> Any:
        asked, self._noted = self._noted, []
        for each in asked:
            self._told[each.request_id] = self._core.analyze_prefix_reuse(each, chunk_tokens=self._ahead).tokens
        return self._requests.settle(*how, **more)

    def take_admitted(self) -> Any:
        unit = self._core.config.tokens_per_block
        admitted = self._requests.take_admitted()
        for each in admitted:
            promised = self._told.pop(each.request_id)
            # A batch that does not fit with the source of a copy does without that part of a block.
            if each.tokens_reused not in (promised, promised // unit * unit):
                raise AssertionError(
                    f"request {each.request_id} reuses {each.tokens_reused} tokens, but was told {promised}"
                )
        return admitted


def prepare(server: Server) -> None:
    server.iterations_max = ITERATIONS_MAX
    if hasattr(server.manager.impl, "core"):
        impl = server.manager.impl
        impl._books.requests = Promises(impl._requests, impl.core, impl.layout.ahead)


def drawn(seed: int, *, windows: bool = False) -> Scenario:
    chance = random.Random(seed)
    blocks = chance.choice([12, 14, 18, 24, 40, 160])
    shape: Shape = replace(
        WIDE,
        blocks=blocks,
        host_blocks=chance.choice([0, 0, blocks // 2, 2 * blocks]),
        heads=chance.choice([(1,), (1, 2)]),
        chunked=chance.random() < 0.6,
        overlap=chance.random() < 0.7,
    )
    if shape.chunked:
        shape = replace(shape, chunk_max=chance.choice([0, 8, 16]), budget=chance.choice([16, 32, 64]))
    packed = chance.random() < 0.5
    if packed:
        shape = replace(shape, policy="MAX_UTILIZATION")
    if windows:
        sizes = chance.choice([(64, 16), (64, 8, 24), (16,), (64, 4)])
        shape = replace(shape, blocks=max(blocks, LONGEST // shape.tokens_per_block), windows=sizes, layers=6)
        if chance.random() < 0.5:
            shape = smaller(shape, chance)
    # The longest fits alone.
    answer = min(20, blocks * shape.tokens_per_block - 35) if packed else 7
    count, answer = (REQUESTS // 4, 24) if windows else (REQUESTS, answer)
    arrivals, cancels = crowd(seed, count, answer)
    return Scenario(f"load-{seed}", ALL, False, shape, arrivals, cancels, prepare=prepare, kind="native")


def smaller(shape: Shape, chance: random.Random) -> Shape:
    """Prompts in chunks of at most 8 tokens, and slots for little more than one sequence in windows that slide."""
    largest = max(size for size in shape.windows if size < shape.max_seq_len)
    needed = held_most(largest, 8, LONGEST, shape.tokens_per_block)
    small = replace(shape, chunked=True, chunk_max=8, budget=8, blocks_sliding=needed + chance.choice([0, 1, 2, 6]))
    # The windows are all of the cache where none sees a whole sequence.
    return replace(small, blocks=small.blocks_sliding) if max(shape.windows) == largest else small


def computed(result: Result) -> int:
    batches = result.tree.get("batches", [])
    return sum(end - begin for batch in batches for _, begin, end in batch["contexts"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help="a folder with a tree for each era")
    parser.add_argument("--era", choices=ERAS, default="S")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the seed of the first run")
    parser.add_argument("--alone", action="store_true", help="do not run upstream's own manager beside it")
    parser.add_argument("--windows", action="store_true", help="layers of several windows, or one that slides; alone")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    wrong = batches = ours = theirs = 0
    for seed in range(given.first, given.first + given.runs):
        scenario = drawn(seed, windows=given.windows)
        result = apart(given.tree / given.era, given.era, scenario, "all")
        batches += len(result.tree.get("batches", []))
        ours += computed(result)
        if not (given.alone or given.windows):
            theirs += computed(apart(given.tree / given.era, given.era, scenario, "off"))
        if result.result != "right":
            wrong += 1
            say(f"run {seed}: {result.result}: {result.remark[:400]}")
    say(f"{given.runs} runs, {batches} batches, {wrong} wrong; {ours} prompt tokens computed, upstream's {theirs}")
    return int(wrong > 0)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
