"""Append what `trtllm-kvfix replay --sweep ... --json` printed to results/sweep.csv, one row for each size.

`trtllm-kvfix replay TRACE ... --sweep 0,200GiB --json | python bench/record_replay.py --results bench/results`

A replay counts and measures nothing, so the same trace and the same code give the same rows on every machine.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measure import FACTS, RESULTS, append

COLUMNS = (
    *FACTS,
    "workload",
    "host_tier",
    "admission",
    "host_gib",
    "reused_percent",
    "host_percent",
    "at_most_percent",
    "ceiling_percent",
    "tib_to_host",
    "tib_to_primary",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    arguments = parser.parse_args()
    append(arguments.results / "sweep.csv", COLUMNS, rows(json.load(sys.stdin)))


def rows(report: dict[str, Any]) -> list[list[Any]]:
    if report["partial"]:
        sys.exit("the replay was interrupted, so its figures are of a part of the trace")
    return [row(report["workload"], outcome) for outcome in report["outcomes"]]


def row(workload: str, outcome: dict[str, Any]) -> list[Any]:
    shape, tokens, moved = outcome["shape"], outcome["tokens"], outcome["moved"]
    total = tokens["primary"] + tokens["host"] + tokens["computed"]
    shares = [tokens["primary"] + tokens["host"], tokens["host"], *(outcome["bounds"][name] for name in BOUNDS)]
    return [
        workload,
        shape["host_tier"],
        shape["host_admission"] if shape["host_tier"] == "connector" else "",
        f"{shape['blocks_host'] * shape['bytes_per_block'] / 2**30:.6g}",
        *(f"{100 * share / total:.6g}" for share in shares),
        *(f"{moved[name] / 2**40:.6g}" for name in ("bytes_to_host", "bytes_to_primary")),
    ]


BOUNDS = ("clairvoyant", "ceiling")

if __name__ == "__main__":
    main()
