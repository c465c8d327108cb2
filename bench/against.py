"""Compare the package as it is here with another commit: quick figures of both in one run, by turns, medians.

The other commit gets a worktree and an interpreter of its own in build/against; its extension is compiled once. The
programs are this checkout's for both sides, so that both do the same work: one that the other commit cannot run is
named and left out. A row counts in a round only beside the other side's of that round. The floor, which is no part of
either package, is the noise: where its ratio is far from 1, so are the others'. The last lines say how far it was.
"""

import argparse
import csv
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from measure import REPOSITORY

HERE = Path(__file__).parent
WORK = REPOSITORY / "build" / "against"
PROGRAMS = ("admission", "growth", "replay")
ROUNDS = 3
FLOOR = "floor"  # and "floor, again": of this checkout on both sides

Key = tuple[str, str, str, str]  # workload, block size, manager, metric
Figures = dict[Key, float]


class Side(NamedTuple):
    """A package to measure: by which interpreter, and what its rows are marked with."""

    name: str
    python: Path
    commit: str | None  # None: of this checkout, which measure.py looks up


class Compared(NamedTuple):
    key: Key
    theirs: float
    ours: float
    rounds: int

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="what git calls a commit: a tag, a branch, HEAD~3")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help=f"of bench/bench_*.py [{','.join(PROGRAMS)}]")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    programs = [program_of(name) for name in arguments.programs.split(",")]
    commit = resolved(arguments.revision)
    other = Side(arguments.revision, built(commit), commit)
    here = Side("here", Path(sys.executable), None)
    found = [row for program in programs for row in compare(program, other, here, arguments.rounds)]
    if not found:
        sys.exit("no program ran on both sides: nothing is compared")
    print("\n".join(table(found, arguments.revision)))


def program_of(name: str) -> Path:
    path = HERE / f"bench_{name}.py"
    if not path.exists():
        known = ", ".join(sorted(each.stem.removeprefix("bench_") for each in HERE.glob("bench_*.py")))
        sys.exit(f"--programs names {name!r}; known are {known}")
    return path


def resolved(revision: str) -> str:
    command = ["git", "rev-parse", "--verify", "--quiet", "--short", f"{revision}^{{commit}}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"REV is {revision!r}, which is no commit of this repository")
    return done.stdout.strip()


def built(commit: str) -> Path:
    """An interpreter that has the package of that commit, and everything else from this one's environment."""
    tree, venv = WORK / commit / "tree", WORK / commit / "venv"
    python = venv / "bin" / "python"
    mark = venv / "built"
    if mark.exists():
        return python
    print(f"building {commit} in {tree.parent.relative_to(REPOSITORY)}", flush=True)
    if not tree.exists():
        # Forced, as `make clean` takes the folder away and not git's note of it.
        add = ["git", "worktree", "add", "--quiet", "--force", "--detach"]
        subprocess.run([*add, tree, commit], cwd=REPOSITORY, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", venv], check=True)
    # As a folder and not as a place for packages: the hook of our editable install is not read there.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(venv)}))
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    shown: list[str | Path] = [sys.executable, REPOSITORY / "tools" / "build_progress.py", "compiled", "--"]
    command = [*shown, sys.executable, "-m", "pip", "--python", python, "install", "--verbose", "--no-deps"]
    command += ["--no-build-isolation", "--ignore-installed", f"--config-settings=build-dir={WORK / commit / 'build'}"]
    subprocess.run([*command, tree], check=True)
    mark.touch()
    return python


def compare(program: Path, other: Side, here: Side, rounds: int) -> list[Compared]:
    """The sides take turns, and the turn to go first: a machine that slows down slows both."""
    taken: dict[Key, list[tuple[float, float]]] = {}
    for number in range(rounds):
        order = (other, here) if number % 2 == 0 else (here, other)
        figures = {side.name: measured(program, side) for side in order}
        theirs, ours = figures[other.name], figures[here.name]
        if theirs is None:
            print(f"{program.name} does not run on {other.name}: left out", flush=True)
            return []
        if ours is None:
            sys.exit(f"{program.name} does not run here")
        for key in theirs.keys() & ours.keys():
            taken.setdefault(key, []).append((theirs[key], ours[key]))
    return [
        Compared(key, median(one for one, _ in pairs), median(one for _, one in pairs), len(pairs))
        for key, pairs in sorted(taken.items())
    ]


def measured(program: Path, side: Side) -> Figures | None:
    """The rows of a quick run; None where the package lacks what the program calls."""
    environment = dict(os.environ)
    if side.commit is not None:
        environment["KVFIX_COMMIT"] = side.commit
        environment.pop("PYTHONPATH", None)  # it may lead to this checkout's package
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [side.python, program, "--quick", "--results", folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(*done.stderr.strip().splitlines()[-1:], file=sys.stderr)
            return None
        return dict(row for file in sorted(Path(folder).glob("*.csv")) for row in rows_of(file))


def rows_of(file: Path) -> Iterator[tuple[Key, float]]:
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            yield (row["workload"], row["block_size"], row["manager"], row["metric"]), float(row["median"])


def table(found: Sequence[Compared], revision: str) -> list[str]:
    lines = [f"{'workload':<22} {'block':>5}  {'manager':<22} {'metric':<34} {revision[:12]:>12} {'here':>12}  ratio"]
    lines += [
        f"{each.key[0]:<22} {each.key[1]:>5}  {each.key[2]:<22} {each.key[3]:<34}"
        f" {each.theirs:>12.4g} {each.ours:>12.4g}  {each.ratio:.2f}"
        for each in found
    ]
    rounds = {each.rounds for each in found}
    noise = [each.ratio for each in found if each.key[2].startswith(FLOOR)]
    if noise:
        lines.append(f"{FLOOR} is in neither package: between {min(noise):.2f} and {max(noise):.2f}, ratios are noise")
    return [*lines, f"medians of {min(rounds)} rounds; a ratio below 1: less here than at {revision}"]


if __name__ == "__main__":
    main()
