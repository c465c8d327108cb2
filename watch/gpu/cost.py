"""Measures what hostrace costs, and where: `python -m watch.gpu.cost LAYERS_SO RESULTS.csv [--rounds N]`.

Processes live side by side and take turns, so that one figure is compared with another of the same moment: plain,
watched, and three with a part of hostrace (layers.cc). A row is the median of one figure in one process over all
rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from hostrace import launch
from hostrace.races import read
from watch.gpu.cost_work import KERNELS, MEASURES
from watch.gpu.table import table

ARMS = ("plain", "callback", "flag", "pages", "watched")
FIELDS = ("commit", "cores", "arm", "measure", "figure", "median_us", "rounds")
LIMIT_STEP, LIMIT_COPY_US, LIMIT_LAUNCH_US, LIMIT_BOOKS_US = 1.05, 3.0, 0.5, 20.0

Figures = dict[tuple[str, str, str], list[float]]  # by arm, measure and figure


class Worker:
    def __init__(self, layers: str, variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "watch.gpu.cost_work", layers],
            env={**os.environ, "OMP_NUM_THREADS": "4", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, measure: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(measure + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with {self.process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def arms(layers: str, folder: Path) -> dict[str, dict[str, str]]:
    watched = launch.variables(os.environ, folder, None)
    part = {launch.ENV_INJECTION: layers, launch.ENV_CUPTI: watched[launch.ENV_CUPTI]}
    return {
        "plain": {},
        "callback": {**part, "HOSTRACE_LAYER": "callback"},
        "flag": {**part, "HOSTRACE_LAYER": "flag"},
        "pages": {**part, "HOSTRACE_LAYER": "pages"},
        "watched": watched,
    }


def taken(
    layers: str, rounds: int, of_arms: dict[str, dict[str, str]], measures: list[str], step: tuple[str, int] | None
) -> Figures:
    """With `step`, the measure of this name besides, whose kernels, so many, take a step of a decoder."""
    figures: Figures = defaultdict(list)
    workers = {arm: Worker(layers, variables) for arm, variables in of_arms.items()}
    if step is not None:
        workers["plain"].ask(f"cycles {step[1]}")
        measures = [*measures, f"{step[0]} {workers['plain'].answer()['cycles']:.0f}"]
    for measure in measures:  # what is made at the first use is made here, in all of them at once
        for worker in workers.values():
            worker.ask(measure)
    for _ in measures:
        for worker in workers.values():
            worker.answer()
    for _ in range(rounds):
        for measure in measures:
            for arm, worker in workers.items():
                worker.ask(measure)
                for figure, value in worker.answer().items():
                    name = step[0] if step is not None and measure.startswith(f"{step[0]} ") else measure
                    figures[arm, name, figure].append(value)
    for worker in workers.values():
        worker.end()
    return figures


def write_rows(file: Path, figures: Figures, rounds: int) -> None:
    with table(file, FIELDS) as add:
        for (arm, measure, figure), values in figures.items():
            commit = os.environ.get("KVFIX_COMMIT", "")
            add((commit, os.cpu_count(), arm, measure, figure, f"{median(values):.3f}", rounds))


def verdict(figures: Figures) -> bool:
    """Print what was measured against what it may be."""
    of = {key: median(values) for key, values in figures.items()}
    bad = False
    for measure in dict.fromkeys(measure for _, measure, _ in of):
        us = {arm: of[arm, measure, "us"] for arm in ARMS}
        added, limit = us["watched"] - us["plain"], LIMIT_LAUNCH_US
        if measure.startswith("copy"):
            protects = (us["pages"] - us["flag"], of["plain", measure, "mprotect_twice_us"])
            limit = max(protects) + LIMIT_COPY_US
        elif measure.startswith("unwaited"):
            limit = of["plain", measure, "mprotect_twice_us"] + LIMIT_BOOKS_US
        elif measure == "decode":
            limit = (LIMIT_STEP - 1) * us["plain"]
        bad |= added > limit
        parts = ", ".join(f"{arm} {value:,.2f}" for arm, value in us.items())
        print(f"{measure}: {parts}; {added:,.2f} us more, of {limit:,.2f}{'  TOO MUCH' if added > limit else ''}")
    for arm in ("plain", "callback", "flag", "watched"):
        steps = {
            figure: value for (of_arm, measure, figure), value in of.items() if (of_arm, measure) == (arm, "decode")
        }
        if steps:
            print(f"decode, {arm}:", ", ".join(f"{figure} {value:,.0f}" for figure, value in steps.items()))
    return bad


def clean(folder: Path) -> None:
    (watched,) = read(folder)
    print(f"watched: {watched.numbers}, notes {watched.notes}")
    if watched.races or watched.refused or watched.notes != ["watching"]:
        raise RuntimeError(f"this is no clean program under watch: {watched}")


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("layers", help="layers.cc as a library")
    parser.add_argument("results", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="")
    return parser.parse_args()


def main() -> int:
    given = arguments(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measures = [each for each in MEASURES if given.only in each]
        step = ("decode", KERNELS) if given.only in "decode" else None
        figures = taken(given.layers, given.rounds, arms(given.layers, folder), measures, step)
        clean(folder)
    write_rows(given.results, figures, given.rounds)
    return int(verdict(figures))


if __name__ == "__main__":
    sys.exit(main())
