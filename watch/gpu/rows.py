"""Each planted and each clean program, with and without hostrace: `python -m watch.gpu.rows RESULTS.csv`.

A row is one process: what ran, how often the outcome was right, and what was reported. `ok` says whether that is what
it had to be; the exit code is 1 where a row is not. `--only TEXT` picks programs, `--times N` occurrences. A row of
`--fresh N` is N processes, each of which has to be caught. A run that `--within` cut short, which is 1 too, goes on
with `--but` the rows that it has.
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from watch.gpu import clean, planted, planted_graphs, planted_torch, planted_touches
from watch.gpu.table import table

LIMIT_S = 180
POSSIBLE = planted.POSSIBLE | planted_torch.POSSIBLE
PROGRAMS = {"driver": list(planted_graphs.ALL_CASES), "torch": list(planted_torch.TORCH_CASES)}
PROGRAMS["all"] = PROGRAMS["driver"] + PROGRAMS["torch"]
# The result of these depends on the driver, not on the touch.
NO_OUTCOME = {"by_cuMemFreeHost", "by_cuMemHostUnregister"}
FILES = {Path(module.__file__ or "").name for module in (planted, planted_graphs, planted_torch, planted_touches)}


@dataclass
class Row:
    program: str
    arm: str  # racy, repaired, clean
    mode: str  # plain, report, hold; fresh is report in processes of their own
    times: int
    right: int
    races: int
    possible: int
    pairs: int
    stacks_ok: bool
    status: int
    ok: bool
    detail: str = ""


@dataclass
class Run:
    command: list[str]
    mode: str
    options: tuple[str, ...] = ()  # of watch

    def outcome(self) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            watch = [sys.executable, "-m", "hostrace", "--json", str(file), *self.options]
            watch += ["--hold"] if self.mode == "hold" else []
            prefix = [] if self.mode == "plain" else [*watch, "--"]
            try:
                done = subprocess.run(
                    [*prefix, *self.command],
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": "4",
                        "HOSTRACE_GATES": "1",
                    },  # many of these processes run at once
                )
            except subprocess.TimeoutExpired as error:
                output = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
                return subprocess.CompletedProcess(self.command, 124, output, "timed out"), {}
            return done, json.loads(file.read_text()) if file.exists() else {}


def planted_row(name: str, arm: str, mode: str, times: int) -> Row:
    given = ["1", str(times)] if mode == "fresh" else [str(times)]
    command = [sys.executable, "-m", "watch.gpu.run_planted", name, arm, *given]
    done, report = Run(command, mode).outcome()
    right = json.loads(done.stdout.splitlines()[-1])["right"] if done.stdout.strip().startswith("{") else -1
    races, possible = occurrences(report, "races", "unordered"), occurrences(report, "possible")
    row = Row(name, arm, mode, times, right, races, possible, len(report.get("races", [])), True, done.returncode, True)
    seen, expected = (possible, 0) if name in POSSIBLE else (races, 1)
    if mode == "plain":
        row.ok = done.returncode == 0 and (name in NO_OUTCOME or right == (0 if arm == "racy" else times))
    elif arm == "repaired":
        row.ok = done.returncode == 0 and right == times and races == 0 and possible == 0
    else:
        row.stacks_ok = all(has_our_frames(race) for race in (*report.get("races", []), *report.get("possible", [])))
        row.ok = seen >= times and done.returncode == expected and row.stacks_ok
        row.ok &= mode != "hold" or name in NO_OUTCOME or right == times
        row.ok &= mode != "fresh" or caught_in(report) == times
    if not row.ok:
        row.detail = " | ".join(done.stderr.strip().splitlines()[-12:])
    return row


def occurrences(report: dict[str, Any], *grades: str) -> int:
    return sum(race["times"] for grade in grades for race in report.get(grade, []))


def caught_in(report: dict[str, Any]) -> int:
    """The number of processes in which something was reported."""
    return len(
        {pid for grade in ("races", "unordered", "possible") for race in report.get(grade, []) for pid in race["pids"]}
    )


def has_our_frames(race: dict[str, Any]) -> bool:
    """Both stacks name a line of the planted program."""
    return all(
        any(Path(frame["file"]).name in FILES and frame["line"] for frame in race[stack]["python"])
        for stack in ("use_stack", "touch_stack")
    )


def planted_rows(name: str, arm: str, mode: str, times: int) -> list[Row]:
    return [planted_row(name, arm, mode, times)]


def clean_rows(name: str, seconds: float) -> list[Row]:
    command = [sys.executable, "-m", "watch.gpu.clean", name, str(seconds)]
    outputs = {}
    rows = []
    for mode in ("plain", "report"):
        done, report = Run(command, mode).outcome()
        outputs[mode] = next((line for line in done.stdout.splitlines() if line.startswith(name)), "nothing")
        same = outputs[mode] == outputs["plain"] != "nothing"
        races, possible = occurrences(report, "races", "unordered"), occurrences(report, "possible")
        good = done.returncode == 0 and same and races == 0
        detail = "" if good else " | ".join(done.stderr.strip().splitlines()[-40:])
        guarded = report.get("numbers", {}).get("guarded", 0)
        row = Row(name, "clean", mode, guarded, int(same), races, possible, 0, True, done.returncode, good, detail)
        rows.append(row)
    return rows


ARMS = (("racy", "plain"), ("racy", "report"), ("racy", "hold"), ("repaired", "report"))
Key = tuple[str, str, str]  # program, arm, mode
Work = dict[Key, Callable[[], list[Row]]]


def all_work(programs: str, only: str, times: int, seconds: float, fresh: int) -> Work:
    names = [name for name in PROGRAMS[programs] if only in name]
    keys = [(name, arm, mode, times) for name in names for arm, mode in ARMS if times]
    keys += [(name, "racy", "fresh", fresh) for name in names if fresh]
    work: Work = {(name, arm, mode): partial(planted_rows, name, arm, mode, often) for name, arm, mode, often in keys}
    for name in clean.PROGRAMS if seconds else ():
        if only in name:
            work[name, "clean", "report"] = partial(clean_rows, name, seconds)
    return work


def rows_of(work: Work, within_s: float, at_once: int) -> Iterator[Row]:
    """Each row as soon as it is known. Nothing is begun after `within_s`."""
    until = time.monotonic() + within_s

    def begun_in_time(make: Callable[[], list[Row]]) -> list[Row]:
        return make() if time.monotonic() < until else []

    with ThreadPoolExecutor(at_once) as pool:
        futures: list[Future[list[Row]]] = [pool.submit(begun_in_time, make) for make in work.values()]
        for future in as_completed(futures):
            yield from future.result()


def known_in(file: Path | None) -> Collection[Key]:
    """The rows that are there already, and as they have to be."""
    if file is None or not file.exists():
        return ()
    with file.open(newline="", encoding="utf-8") as rows:
        return {(row["program"], row["arm"], row["mode"]) for row in csv.DictReader(rows) if row["ok"] == "True"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--programs", choices=PROGRAMS, default="all", help="that call the driver, or torch")
    parser.add_argument("--only", default="")
    parser.add_argument("--but", type=Path, help="a file with rows: what is as it has to be there is left out")
    parser.add_argument("--times", type=int, default=100, help="in one process; 0 for none")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each clean program; 0 for none")
    parser.add_argument("--fresh", type=int, default=0, help="fresh processes of each planted one")
    parser.add_argument("--at-once", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which nothing is begun")
    given = parser.parse_args()
    work = all_work(given.programs, given.only, given.times, given.seconds, given.fresh)
    known = known_in(given.but)
    left = {key: make for key, make in work.items() if key not in known}
    bad = 0
    with table(given.results, [field.name for field in fields(Row)]) as add:
        for row in rows_of(left, given.within, given.at_once):
            add(astuple(row))
            left.pop((row.program, row.arm, row.mode), None)
            if not row.ok:
                bad += 1
                print(*astuple(row), flush=True)
    print(f"{bad} rows are not as they have to be, {len(left)} were not begun", *sorted({key[0] for key in left}))
    return int(bad > 0 or len(left) > 0)


if __name__ == "__main__":
    sys.exit(main())
