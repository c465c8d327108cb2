"""Append what `trtllm-kvfix verify --json` printed to results/verify.csv, one row for each case and mode.

`trtllm-kvfix verify --device cuda --json | python bench/record_verify.py --results bench/results`
"""

import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from measure import FACTS, RESULTS, append

COLUMNS = (
    *FACTS,
    "device",
    "torch",
    "case",
    "variant",
    "hazard",
    "iterations",
    "control_corrupt",
    "control_pending",
    "control_us",
    "fixed_corrupt",
    "fixed_pending",
    "fixed_us",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    arguments = parser.parse_args()
    append(arguments.results / "verify.csv", COLUMNS, rows(json.load(sys.stdin)))


def rows(report: dict[str, Any]) -> list[list[Any]]:
    facts = [report["device"]["name"], torch_version()]
    return [
        [*facts, case["case"], case["variant"], case["hazard"], report["iterations"], *arms(case)]
        for case in report["cases"]
    ]


def arms(case: dict[str, Any]) -> list[Any]:
    return [case[arm][figure] for arm in ("control", "fixed") for figure in ("corrupt", "pending", "call_us_median")]


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
