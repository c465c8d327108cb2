"""What RAPIDS mended in the summer of 2026, under hostrace: `python -m watch.gpu.rapids PROGRAMS RESULTS.csv`.

PROGRAMS is a folder with rapids.cc compiled against one version of librmm in each of its folders. A row is a program
against a version, before or after its repair. From 26.10 on hostrace has to report each round before it, and nothing
after it. Until 26.8 the copies read their sources in the call: those programs are right, and have to be silent.
"""

import argparse
import sys
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from watch.gpu.rows import Run, occurrences
from watch.gpu.table import table

ROUNDS = 50
BREAKS_FROM = (26, 10)
REPORTS = {
    "scalar_of_a_temporary": "rmm#2526",
    "views_of_a_loop": "cuopt#1759",
    "vector_of_a_function": "cudf#23718",
    "vector_of_a_block": "rapidsmpf#1101",
}


@dataclass
class Row:
    report: str
    program: str
    librmm: str
    arm: str  # before or after the repair
    rounds: int
    wrong_plain: int
    wrong_watched: int
    races: int
    unordered: int
    possible: int
    status: int
    ok: bool
    detail: str = ""


def row(program: Path, name: str, arm: str) -> Row:
    command = [str(program), name, arm, str(ROUNDS)]
    (plain, _), (seen, report) = (Run(command, mode).outcome() for mode in ("plain", "report"))
    wrong_plain, wrong_watched = (int(done.stdout) if done.stdout.strip().isdigit() else -1 for done in (plain, seen))
    races, unordered, possible = (occurrences(report, grade) for grade in ("races", "unordered", "possible"))
    version = program.parent.name
    racy = arm == "before" and tuple(map(int, version.split("."))) >= BREAKS_FROM
    silent = races == unordered == possible == wrong_plain == wrong_watched == 0
    ran = plain.returncode == 0 and wrong_watched >= 0 and seen.returncode == int(racy)
    ok = ran and (races + unordered >= ROUNDS if racy else silent)
    said = "" if ok else " | ".join((plain.stderr + seen.stderr).strip().splitlines()[-12:])
    numbers = (ROUNDS, wrong_plain, wrong_watched, races, unordered, possible, seen.returncode)
    return Row(REPORTS[name], name, version, arm, *numbers, ok, said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    bad = 0
    with table(given.results, [field.name for field in fields(Row)]) as add:
        for program in sorted(given.programs.glob("*/rapids")):
            for name in REPORTS:
                for arm in ("before", "after"):
                    made = row(program, name, arm)
                    add(astuple(made))
                    print(*astuple(made), flush=True)
                    bad += not made.ok
    print(f"{bad} rows are not as they have to be")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
