"""Measures what one generated token costs: add_tokens for 20 and for 256 sequences, beside the floor's append.

Timed is one call for all sequences, with the token values given, so that full blocks can be stored later: by ids with
the counts and lengths of all sequences, and of a decode batch, which was made before. The floor
hashes and registers a block as soon as it is full; ours does that when the sequence is removed, timed as `finish`.
"""

import argparse
from pathlib import Path

from floor import Floor
from measure import RESULTS, Row, Summary, pin_to_one_core, report
from ours import DECODE_BATCH, OURS, run
from workloads import growth

SEQUENCES = (20, 256)
ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--block-sizes", default="16,32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    arguments = parser.parse_args()
    pin_to_one_core()
    floor = Floor()
    for sequences in SEQUENCES:
        for block_size in map(int, arguments.block_sizes.split(",")):
            rounds = 3 if arguments.quick else arguments.rounds
            report("growth.csv", measure(floor, sequences, block_size, rounds), arguments.results)


def measure(floor: Floor, sequences: int, block_size: int, rounds: int) -> list[Row]:
    workload = growth(sequences)
    stream = workload.flattened()
    tokens = workload.tokens_generated
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}  # (manager, metric) -> (ours, floor) of each round
    for _ in range(rounds + 1):
        base, ours = floor.run(workload, stream, block_size), run(workload, block_size)
        batched = run(workload, block_size, DECODE_BATCH)
        again = floor.run(workload, stream, block_size)
        append_base, finish_base = int(base.step_ns.sum()) / tokens, int(base.finish_ns.sum()) / tokens
        runs = (("floor", base), (OURS.name, ours), (DECODE_BATCH.name, batched), ("floor, again", again))
        for manager, costs in runs:
            append, finish = int(costs.step_ns.sum()) / tokens, int(costs.finish_ns.sum()) / tokens
            figures.setdefault((manager, "append_ns_per_token"), []).append((append, append_base))
            both = (append + finish, append_base + finish_base)
            figures.setdefault((manager, "append_finish_ns_per_token"), []).append(both)
    made = []
    for (manager, metric), pairs in figures.items():
        counted = pairs[1:]  # the first round warms up
        ratios = None if manager == "floor" else Summary.of([mine / floors for mine, floors in counted])
        made.append(Row(workload.name, block_size, manager, metric, Summary.of([mine for mine, _ in counted]), ratios))
    return made


if __name__ == "__main__":
    main()
