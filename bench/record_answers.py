"""Play a long chat in each engine of tests/engine/long_run.py and append to results/answers.csv: how many are wrong.

`python bench/record_answers.py --requests 2000`; nothing is timed, so other programs may keep the machine busy.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import FACTS, REPOSITORY, RESULTS, append

sys.path.insert(0, str(REPOSITORY))  # the load lives among the tests
from tests.engine.load import Load, Played
from tests.engine.long_run import engines

COLUMNS = (*FACTS, "engine", "off", "requests", "wrong", "preemptions", "blocks_loaded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    arguments = parser.parse_args()
    append(arguments.results / "answers.csv", COLUMNS, rows(arguments.requests))


def rows(requests: int) -> Iterator[list[Any]]:
    load = Load(requests)
    for name, config in engines():
        played = Played(load, config, "cpu")
        found = [len(played.wrong), played.counts.preemptions, played.blocks_loaded]
        print(name, *found, flush=True)
        yield [name, " ".join(sorted(config.off)), requests, *found]


if __name__ == "__main__":
    main()
