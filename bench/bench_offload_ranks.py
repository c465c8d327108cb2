"""Does one rank's copying slow the other's? The connector's lanes on two GPUs of one host, alone and both at once.

Each rank is a process with a GPU and a pool of its own, in whatever memory the kernel gives it. gbps is of one rank.
With --device cpu the devices are simulated, which says nothing about speed.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench_offload import KIB, MIB, Contents, measure
from measure import REPOSITORY, RESULTS, Row, Summary, report
from offload_ways import Lanes, make_work

sys.path.insert(0, str(REPOSITORY))  # the ranks live among the tests
from tests.offload.rank_processes import run_ranks
from tests.offload.rank_scenarios import Here

RANKS = 2
SIZES = (64 * KIB, MIB)
WHO = {"alone_rank_0": (0,), "alone_rank_1": (1,), "both": (0, 1)}


def speeds(here: Here, sizes: tuple[int, ...], rounds: int) -> dict[tuple[int, str, str], tuple[float, ...]]:
    """The speeds of this rank, by block size, direction and which ranks copy."""
    found: dict[tuple[int, str, str], tuple[float, ...]] = {}
    for size in sizes:
        work = make_work(here.device, size)
        contents = Contents(work)
        for direction in ("store", "load"):
            for name, ranks in WHO.items():
                contents.spoil(direction)
                here.ranks.gather(None)  # all begin together
                if here.ranks.rank in ranks:
                    way = Lanes(work, direction)
                    found[size, direction, name] = tuple(measure(way, rounds)["gbps"])
                    way.close()
                    contents.require(direction)
    return found


def rows(kind: str, sizes: tuple[int, ...], rounds: int) -> Iterator[Row]:
    (found,) = run_ranks(kind, RANKS, [partial(speeds, sizes=sizes, rounds=rounds)])
    for rank, of_rank in enumerate(found):
        for (size, direction, name), summary in of_rank.items():
            who = name if name != "both" else f"both_rank_{rank}"
            yield Row(f"offload_tp2_{direction}", size, f"kvfix_lane_{who}", "gbps", Summary(*summary))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="one size, few rounds")
    options: Any = parser.parse_args()
    sizes, rounds = (SIZES[:1], 2) if options.quick else (SIZES, 40)
    report("offload.csv", rows(options.device, sizes, rounds), options.results)


if __name__ == "__main__":
    main()
