"""Append what `trtllm-kvfix replay --json` printed: a sweep to results/sweep.csv, a comparison to results/compare.csv.

`trtllm-kvfix replay TRACE ... --sweep 0,200GiB --json | python bench/record_replay.py --results bench/results`

A replay counts and measures nothing, so the same trace and the same code give the same rows on every machine.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from measure import FACTS, RESULTS, append

Outcome = dict[str, Any]

SWEEP_COLUMNS = (
    "host_gib",
    "reused_percent",
    "host_percent",
    "at_most_percent",
    "ceiling_percent",
    "tib_to_host",
    "tib_to_primary",
)
COMPARE_COLUMNS = (
    "host_gib",
    "reused_percent",
    "iterations_admitting",
    "overshoots",
    "tokens_over_max",
    "promises",
    "promises_broken",
    "tokens_short",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    arguments = parser.parse_args()
    report = json.load(sys.stdin)
    if report["partial"]:
        sys.exit("the replay was interrupted, so its figures are of a part of the trace")
    outcomes, workload = report["outcomes"], report["workload"]
    if len({outcome["admission"] for outcome in outcomes}) > 1:
        columns = (*FACTS, "workload", "admission", *COMPARE_COLUMNS)
        rows = [[workload, each["admission"], *compared(each)] for each in outcomes]
        append(arguments.results / "compare.csv", columns, rows)
    else:
        columns = (*FACTS, "workload", "host_tier", "admission", *SWEEP_COLUMNS)
        rows = [[workload, *tier(each), *swept(each)] for each in outcomes]
        append(arguments.results / "sweep.csv", columns, rows)


def tier(outcome: Outcome) -> list[str]:
    shape = outcome["shape"]
    return [shape["host_tier"], shape["host_admission"] if shape["host_tier"] == "connector" else ""]


def swept(outcome: Outcome) -> list[str]:
    tokens, bounds, moved = outcome["tokens"], outcome["bounds"], outcome["moved"]
    reused = tokens["primary"] + tokens["host"]
    shares = (reused, tokens["host"], bounds["clairvoyant"], bounds["ceiling"])
    return [
        host_gib(outcome),
        *(percent(outcome, share) for share in shares),
        *(f"{moved[name] / 2**40:.6g}" for name in ("bytes_to_host", "bytes_to_primary")),
    ]


def compared(outcome: Outcome) -> list[Any]:
    tokens, budget = outcome["tokens"], outcome["budget"]
    counts = [budget[name] for name in COMPARE_COLUMNS[2:]]
    return [host_gib(outcome), percent(outcome, tokens["primary"] + tokens["host"]), *counts]


def host_gib(outcome: Outcome) -> str:
    shape = outcome["shape"]
    return f"{shape['blocks_host'] * shape['bytes_per_block'] / 2**30:.6g}"


def percent(outcome: Outcome, share: int) -> str:
    tokens = outcome["tokens"]
    return f"{100 * share / (tokens['primary'] + tokens['host'] + tokens['computed']):.6g}"


if __name__ == "__main__":
    main()
