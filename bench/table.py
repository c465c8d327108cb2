"""Print the newest rows of a results file as a Markdown table.

One line for each manager, one column for each workload; a cell is the median and its ratio to the floor, if any:
`python bench/table.py admission.csv --metric admit_us_per_request --block-size 16`
"""

import argparse
import csv
from pathlib import Path

from measure import RESULTS

Key = tuple[str, str]  # manager, workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="a name in bench/results, or a path")
    parser.add_argument("--metric", required=True)
    parser.add_argument("--block-size", default="32")
    arguments = parser.parse_args()
    path = Path(arguments.file) if Path(arguments.file).exists() else RESULTS / arguments.file
    print("\n".join(table(newest(path, arguments.metric, arguments.block_size))))


def newest(path: Path, metric: str, block_size: str) -> dict[Key, dict[str, str]]:
    """Rows are appended, so the last one of each manager and workload is the newest."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["metric"], row["block_size"]) == (metric, block_size)]
    if not rows:
        raise SystemExit(f"{path} has no row with metric {metric} and block size {block_size}")
    return {(row["manager"], row["workload"]): row for row in rows}


def table(rows: dict[Key, dict[str, str]]) -> list[str]:
    managers = list(dict.fromkeys(manager for manager, _ in rows))
    workloads = list(dict.fromkeys(workload for _, workload in rows))
    lines = ["| | " + " | ".join(workloads) + " |", "| --- |" + " ---: |" * len(workloads)]
    for manager in managers:
        cells = [_cell(rows.get((manager, workload))) for workload in workloads]
        lines.append(f"| {manager} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    median = f"{float(row['median']):.3g}"
    return f"{median} ({float(row['ratio_to_floor']):.2f}x)" if row["ratio_to_floor"] else median


if __name__ == "__main__":
    main()
