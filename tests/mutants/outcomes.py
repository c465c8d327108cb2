"""The outcome of each mutant, and the table of outcomes that the repository keeps (results.csv)."""

import csv
import subprocess
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from tests.mutants.mutant import ROOT, Mutant

NOTICED = {"failed", "crashed"}
SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    commit: str
    date: str
    mutant: str
    file: str
    test: str
    outcome: str  # of the test, with the mistake


def outcome_of(unharmed: str, mutated: str) -> str:
    """A test that does not pass without the mistake says nothing about it."""
    if unharmed == "passed":
        return mutated
    return SKIPPED if unharmed == SKIPPED else f"{unharmed} without it"


def commit_now() -> str:
    """The commit, marked when the tree has changes."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "cpp", "cmake", "tests/mutants/mutants.yaml")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


def date_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_outcomes(path: Path) -> list[Outcome]:
    with path.open(encoding="utf-8", newline="") as file:
        return [Outcome(**row) for row in csv.DictReader(file)]


def keep_outcomes(path: Path, new: list[Outcome], mutants: list[Mutant]) -> None:
    """In the order of `mutants`. Of a mutant that was not tried now, the row that is there stays."""
    kept = {one.mutant: one for one in read_outcomes(path)} if path.exists() else {}
    kept |= {one.mutant: one for one in new}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Outcome)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(kept[mutant.name]) for mutant in mutants if mutant.name in kept)
