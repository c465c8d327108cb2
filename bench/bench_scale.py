"""Measures what an operation costs as the cache grows from ten thousand blocks to four million, and while threads pin.

The pool is filled with stored prompts of 2,048 tokens before anything is timed, so every admission below evicts.
  admit_cold   SequenceRequest and add_sequence of a prompt that is not cached
  admit_warm   the same of one that is, chosen at random
  request      SequenceRequest alone
  analyze      analyze_prefix_reuse of a cached prompt
  transfer     take_transfers and complete, with nothing to do but now and then
  store        store_context_blocks of a cold prompt
  remove       remove_sequence of a cold prompt
  append       add_tokens of one token for 64 sequences, per token
  pin          pin_blocks and unpin_blocks_by_id of a live sequence
While threads pin, each of them does only the last, on a sequence of its own, in a loop.

In the end the full cache is dropped, while another thread asks for the length of a sequence in a loop:
  reset                reset_reuse_state
  ask_in_reset         a call of that thread, which waits for the lock now and then
  ask_in_reset_p99     of these calls
  ask_in_reset_worst   the longest; another process may have had the core meanwhile
"""

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

import numpy as np
from measure import RESULTS, Row, Summary, quiet_garbage_collector, report
from workloads import SEED, TOKEN_END, TOKEN_MIN, Tokens

from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest

BLOCKS = (10_000, 100_000, 1_000_000, 4_000_000)
THREADS = (1, 2, 4)
TOKENS_PER_BLOCK = 32
PROMPT = 2048
SEQUENCES_GENERATING = 64
SAMPLES = 400
# Ids apart from those of stored prompts: these sequences are short, or held by threads.
IDS_GENERATING = 1_000_000_000
IDS_PINNING = 2_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", help="comma-separated pool sizes; default: 10 thousand to 4 million")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="pools up to 100 thousand blocks, 100 samples")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.blocks.split(",")] if arguments.blocks else list(BLOCKS)
    samples = arguments.samples
    if arguments.quick:
        sizes, samples = [size for size in sizes if size <= 100_000], 100
    for blocks in sizes:
        cache = Cache(blocks)
        report("scale.csv", rows(f"{blocks:,} blocks", cache.measure(samples)), arguments.results)
        if blocks == 100_000:
            for threads in THREADS:
                with pinning(cache, threads):
                    made = rows(f"{threads} pinning", cache.measure(samples))
                report("scale.csv", made, arguments.results)
        report("scale.csv", rows(f"{blocks:,} blocks", cache.measure_reset()), arguments.results)


def rows(workload: str, samples_us: dict[str, list[float]]) -> Iterator[Row]:
    for metric, values in samples_us.items():
        yield Row(workload, TOKENS_PER_BLOCK, "trtllm-kvfix", f"{metric}_us", Summary.of(values))


def prompt(number: int) -> Tokens:
    random = np.random.Generator(np.random.PCG64([SEED, number]))
    return random.integers(TOKEN_MIN, TOKEN_END, size=PROMPT, dtype=np.int32)


def pass_through(manager: BlockManager, number: int) -> None:
    """Admit a prompt, store it and let it go."""
    manager.add_sequence(SequenceRequest(number, prompt(number)))
    run_transfers(manager)
    manager.store_context_blocks(number, PROMPT)
    manager.remove_sequence(number)


def run_transfers(manager: BlockManager) -> None:
    """Random prompts begin with the same token now and then, and are copied for it; they complete at once."""
    manager.complete(manager.take_transfers().ticket)


class Cache:
    """A manager whose pool is full of stored prompts, and the numbers of those that were stored last."""

    def __init__(self, blocks: int) -> None:
        self.manager = BlockManager(BlockManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, blocks_primary=blocks))
        self.prompts = blocks // (PROMPT // TOKENS_PER_BLOCK) + 1
        self._random = np.random.Generator(np.random.PCG64(SEED))
        for number in range(self.prompts):
            pass_through(self.manager, number)
        self.next_number = self.prompts

    def measure(self, samples: int) -> dict[str, list[float]]:
        """Microseconds of each operation, each sample by itself."""
        with quiet_garbage_collector():
            times = self._measure_prompts(samples)
            times |= self._measure_live(samples)
        return times

    def _measure_prompts(self, samples: int) -> dict[str, list[float]]:
        names = ("admit_cold", "transfer", "store", "remove", "request", "analyze", "admit_warm")
        times: dict[str, list[float]] = {name: [] for name in names}
        manager = self.manager
        for _ in range(samples):
            number, self.next_number = self.next_number, self.next_number + 1
            cold = prompt(number)
            # Among the newest half, which no admission of this loop has evicted.
            warm = prompt(number - int(self._random.integers(0, self.prompts // 2)))
            stamps = [perf_counter_ns()]
            manager.add_sequence(SequenceRequest(number, cold))
            stamps.append(perf_counter_ns())
            run_transfers(manager)
            stamps.append(perf_counter_ns())
            manager.store_context_blocks(number, PROMPT)
            stamps.append(perf_counter_ns())
            manager.remove_sequence(number)
            stamps.append(perf_counter_ns())
            request = SequenceRequest(number, warm)
            stamps.append(perf_counter_ns())
            promised = manager.analyze_prefix_reuse(request)
            stamps.append(perf_counter_ns())
            manager.add_sequence(SequenceRequest(number, warm))
            stamps.append(perf_counter_ns())
            run_transfers(manager)
            manager.remove_sequence(number)
            if promised.tokens != PROMPT - 1:
                raise SystemExit(f"a prompt that should be cached reuses {promised.tokens} of {PROMPT - 1} tokens")
            for name, span in zip(names, np.diff(stamps) / 1e3, strict=True):
                times[name].append(float(span))
        return times

    def _measure_live(self, samples: int) -> dict[str, list[float]]:
        manager = self.manager
        ids = np.arange(IDS_GENERATING, IDS_GENERATING + SEQUENCES_GENERATING)
        for number in ids.tolist():
            manager.add_sequence(SequenceRequest(number, prompt(number)[: TOKENS_PER_BLOCK + 1]))
        run_transfers(manager)
        counts = np.ones(SEQUENCES_GENERATING, np.int64)
        lengths = np.full(SEQUENCES_GENERATING, TOKENS_PER_BLOCK + 1)
        times: dict[str, list[float]] = {"append": [], "pin": []}
        for sample in range(samples):
            tokens = np.full(SEQUENCES_GENERATING, TOKEN_MIN + sample, np.int32)
            began = perf_counter_ns()
            manager.add_tokens(ids, counts, tokens, computed=lengths)
            grown = perf_counter_ns()
            lengths += counts
            [held] = manager.get_cache_block_ids(IDS_GENERATING)
            manager.pin_blocks_by_id(held)
            manager.unpin_blocks_by_id(held)
            pinned = perf_counter_ns()
            times["append"].append((grown - began) / 1e3 / SEQUENCES_GENERATING)
            times["pin"].append((pinned - grown) / 1e3)
        for number in ids.tolist():
            manager.remove_sequence(number)
        return times

    def measure_reset(self) -> dict[str, list[float]]:
        manager = self.manager
        run_transfers(manager)
        manager.add_sequence(SequenceRequest(IDS_GENERATING, prompt(IDS_GENERATING)[:1]))
        asked: list[tuple[int, int]] = []
        asking, is_empty = threading.Event(), threading.Event()

        def ask_in_a_loop() -> None:
            while not is_empty.is_set():
                began = perf_counter_ns()
                manager.get_token_count(IDS_GENERATING)
                asked.append((began, perf_counter_ns()))
                asking.set()

        other = threading.Thread(target=ask_in_a_loop)
        other.start()
        asking.wait()
        began = perf_counter_ns()
        manager.reset_reuse_state()
        ended = perf_counter_ns()
        is_empty.set()
        other.join()
        manager.remove_sequence(IDS_GENERATING)
        [window] = manager.get_kv_cache_stats().windows
        if window.primary.free != window.primary.blocks:
            raise SystemExit(f"after a reset {window.primary.free} of {window.primary.blocks} blocks are free")
        waits = [(after - before) / 1e3 for before, after in asked if began <= before and after <= ended]
        return {"reset": [(ended - began) / 1e3]} | _distribution(waits)


def _distribution(waits: list[float]) -> dict[str, list[float]]:
    """Nothing if the reset was over before the other thread had asked once."""
    if not waits:
        return {}
    p99 = float(np.percentile(waits, 99))
    return {"ask_in_reset": waits, "ask_in_reset_p99": [p99], "ask_in_reset_worst": [max(waits)]}


@contextmanager
def pinning(cache: Cache, count: int) -> Iterator[None]:
    """`count` threads that pin and unpin the blocks of a sequence each until the block ends."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def pin_in_a_loop(number: int) -> None:
        try:
            while not stop.is_set():
                [held] = cache.manager.get_cache_block_ids(number)
                cache.manager.pin_blocks_by_id(held)
                cache.manager.unpin_blocks_by_id(held)
        except BaseException as error:  # a thread's exception would be lost otherwise
            errors.append(error)

    ids = range(IDS_PINNING, IDS_PINNING + count)
    for number in ids:
        cache.manager.add_sequence(SequenceRequest(number, prompt(number)))
    threads = [threading.Thread(target=pin_in_a_loop, args=(number,)) for number in ids]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for number in ids:
            cache.manager.remove_sequence(number)
    if errors:
        raise errors[0]


if __name__ == "__main__":
    main()
