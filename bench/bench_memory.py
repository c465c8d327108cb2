"""Memory that a cached block takes besides its tokens: the growth of the process divided by the blocks.

Each size is measured in a process of its own, because memory that was freed is seldom given back. `pool` is after the
manager was made, `cached` after every block holds tokens (4 bytes each, which are subtracted). With `two tiers` half of
the blocks are in host.
"""

import argparse
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from bench_scale import PROMPT, pass_through, prompt
from measure import RESULTS, Row, Summary, report

from trtllm_kvfix.native import BlockManager, BlockManagerConfig

BLOCKS = 1_000_000
TOKEN_BYTES = 4
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--block-sizes", default="16,32,64")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="100 thousand blocks of 32 tokens")
    parser.add_argument("--measure", type=int, metavar="BLOCK_SIZE", help="measure this process and print JSON")
    parser.add_argument("--two-tiers", action="store_true", help="with --measure: half of the blocks in host")
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure, arguments.blocks, two_tiers=arguments.two_tiers)))
        return
    if arguments.quick:
        arguments.blocks, arguments.block_sizes = 100_000, "32"
    for block_size, tiers in product(map(int, arguments.block_sizes.split(",")), ("", ", two tiers")):
        command = [sys.executable, __file__, "--measure", str(block_size), "--blocks", str(arguments.blocks)]
        command += ["--two-tiers"] if tiers else []
        done = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(ROUNDS)]
        rows = [
            Row(
                f"{arguments.blocks:,} blocks{tiers}",
                block_size,
                "trtllm-kvfix",
                metric,
                Summary.of([one[metric] for one in done]),
            )
            for metric in done[0]
        ]
        report("memory.csv", rows, arguments.results)


def measure(block_size: int, blocks: int, *, two_tiers: bool) -> dict[str, float]:
    prompt(0)  # numpy's generator allocates when it is first used
    before = resident_bytes()
    host = blocks // 2 if two_tiers else 0
    manager = BlockManager(
        BlockManagerConfig(tokens_per_block=block_size, blocks_primary=blocks - host, blocks_host=host)
    )
    pool = resident_bytes()
    for number in range(blocks * block_size // PROMPT):
        pass_through(manager, number)
    cached = resident_bytes()
    window = manager.get_kv_cache_stats().windows[0]
    blocks_cached = window.primary.cached + window.host.cached
    tokens_bytes = blocks_cached * block_size * TOKEN_BYTES
    return {
        "pool_bytes_per_block": (pool - before) / blocks,
        "cached_bytes_per_block": (cached - before - tokens_bytes) / blocks_cached,
    }


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
