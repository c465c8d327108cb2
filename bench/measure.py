"""Every benchmark shares these: summaries, the facts about a machine, and rows in bench/results/*.csv."""

import csv
import gc
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trtllm_kvfix.native import build_info

REPOSITORY = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
FACTS = ("date", "machine", "compiler", "python", "commit")
COLUMNS = (
    *FACTS,
    "workload",
    "block_size",
    "manager",
    "metric",
    "median",
    "p20",
    "p80",
    "ratio_to_floor",
    "rounds",
)


class Summary(NamedTuple):
    median: float
    p20: float
    p80: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        low, middle, high = np.percentile(np.asarray(values, np.float64), (20, 50, 80))
        return cls(float(middle), float(low), float(high), len(values))


class Row(NamedTuple):
    workload: str
    block_size: int
    manager: str
    metric: str  # ends with its unit
    summary: Summary
    ratio_to_floor: Summary | None = None

    def text(self) -> str:
        summary = self.summary
        line = (
            f"{self.workload:<9} {self.block_size:>4}  {self.manager:<22} {self.metric:<32} {summary.median:>11.4g}"
            f"  [{summary.p20:.4g} .. {summary.p80:.4g}]"
        )
        ratio = self.ratio_to_floor
        return line if ratio is None else f"{line}  x{ratio.median:.2f} [{ratio.p20:.2f} .. {ratio.p80:.2f}]"


def report(file_name: str, rows: Iterable[Row], folder: Path) -> None:
    """Print rows as they come and append them to a file."""

    def printed() -> Iterator[list[Any]]:
        for row in rows:
            print(row.text(), flush=True)
            summary, ratio = row.summary, row.ratio_to_floor
            numbers = [f"{value:.6g}" for value in (summary.median, summary.p20, summary.p80)]
            ratio_text = "" if ratio is None else f"{ratio.median:.4g}"
            yield [row.workload, row.block_size, row.manager, row.metric, *numbers, ratio_text, summary.rounds]

    append(folder / file_name, COLUMNS, printed())


def append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Add the facts of this moment and a row to a file that is never rewritten, row by row as they come.

    columns: all of them, FACTS first; a row holds the rest.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = [datetime.now(timezone.utc).isoformat(timespec="seconds"), machine(), *build_facts()]
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(columns)
        for row in rows:
            writer.writerow([*facts, *row])
            file.flush()  # a run that is cut off keeps what it has


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.partition(":")[2] for line in cpu_info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].strip() if names else model
    return f"{model}, {os.cpu_count()} cores"


def build_facts() -> list[str]:
    """Compiler of the extension, interpreter, and the commit, marked when the tree has changes."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = "+" if git("status", "--porcelain", "--untracked-files=no", "--", "cpp", "cmake", "trtllm_kvfix") else ""
    # A copy of the tree has no history: whoever copied it says what it is.
    commit = os.environ.get("KVFIX_COMMIT") or git("rev-parse", "--short", "HEAD") or "unknown"
    return [
        build_info()["compiler"],
        f"{platform.python_implementation()} {platform.python_version()}",
        commit + changed,
    ]


def pin_to_one_core() -> None:
    """Measure one thread where it is; the last core is the least likely to serve interrupts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@contextmanager
def quiet_garbage_collector() -> Iterator[None]:
    """Serving engines do this after start-up: objects that are alive now are never looked at again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
