"""Plant one mistake at a time in cpp/staging or cpp/core and require that its test fails.

Works on a copy of the tree in a temporary folder. One build folder serves all mutants, so each costs what
it recompiles.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
STAGING_TESTS = "kvfix_staging_tests"
CORE_TESTS = "kvfix_tests"
WORLDS = "fuzz_worlds"
WORLD_STEPS = 400_000  # most mistakes show within 10,000
TEST_SECONDS_MAX = 120


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    edits: list[tuple[str, str]]
    test: str  # one of STAGING_TESTS, of CORE_TESTS where the file is the core's, or WORLDS

    @property
    def program(self) -> str:
        if self.test == WORLDS:
            return WORLDS
        return CORE_TESTS if self.file.startswith("cpp/core/") else STAGING_TESTS

    def apply(self, text: str) -> str:
        for old, new in self.edits:
            if (count := text.count(old)) != 1:
                raise ValueError(f"mutant '{self.name}': {count} times in {self.file}, not once: {old}")
            text = text.replace(old, new)
        return text


def load_mutants() -> list[Mutant]:
    listed = yaml.safe_load(Path(__file__).with_name("mutants.yaml").read_text(encoding="utf-8"))
    return [Mutant(**{**one, "edits": [(old, new) for old, new in one["edits"]]}) for one in listed]


def copy_tree(to: Path) -> None:
    """Copies what git knows, and what it would take in: a test that is not committed yet counts."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():  # not one that was deleted and not committed
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


class Workshop:
    """A copy of the tree and its build folder."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.tree, self.build, self.jobs = folder / "tree", folder / "build", jobs
        copy_tree(self.tree)
        options = ["-DCMAKE_BUILD_TYPE=Debug", "-DKVFIX_BUILD_TESTS=ON", "-DKVFIX_KERNELS=OFF"]
        options.append("-DCMAKE_REQUIRE_FIND_PACKAGE_GTest=ON")
        self._must_run(["cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja", *options])

    def compile(self) -> None:
        programs = [STAGING_TESTS, CORE_TESTS, WORLDS]
        self._must_run(["cmake", "--build", str(self.build), "--target", *programs, "--parallel", str(self.jobs)])

    def test(self, mutant: Mutant) -> str:
        """'passed', 'failed', 'hung', 'skipped' (it needs another machine), or what else became of that test."""
        if mutant.program == WORLDS:
            arguments = [WORLDS, "--steps", str(WORLD_STEPS)]
        else:
            arguments = [mutant.program, f"--gtest_filter={mutant.test}", "--gtest_brief=1"]
        command = [str(self.build / "bin" / arguments[0]), *arguments[1:]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS_MAX, check=False)
        except subprocess.TimeoutExpired:
            return "hung"
        if mutant.program == WORLDS:
            return {0: "passed", 1: "failed"}.get(done.returncode, "crashed")
        if "[==========] 1 test from" not in done.stdout:
            return "crashed" if done.returncode < 0 else "not found"
        if "[  SKIPPED ] 1 test" in done.stdout:
            return "skipped"
        return "passed" if done.returncode == 0 else "failed"

    def test_with(self, mutant: Mutant) -> str:
        path = self.tree / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutant.apply(before), encoding="utf-8")
        try:
            self.compile()
            return self.test(mutant)
        finally:
            path.write_text(before, encoding="utf-8")

    @staticmethod
    def _must_run(command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise click.ClickException(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Parallel compilations.")
@click.option("--only", default="", help="Only the mutants with this in their name.")
def main(jobs: int, only: str) -> None:
    mutants = [mutant for mutant in load_mutants() if only in mutant.name]
    if not mutants:
        raise click.UsageError(f"no mutant has '{only}' in its name")
    console = Console()
    table = Table("mutant")
    table.add_column("test", overflow="fold")
    table.add_column("as it is")
    table.add_column("with the mistake")
    bad = skipped = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workshop = Workshop(Path(folder), jobs)
        workshop.compile()
        unharmed = {mutant.test: workshop.test(mutant) for mutant in mutants}
        for mutant in mutants:
            if unharmed[mutant.test] == "skipped":
                skipped += 1
                table.add_row(mutant.name, mutant.test, "[yellow]skipped[/]", "")
                continue
            mutated = workshop.test_with(mutant)
            good = unharmed[mutant.test] == "passed" and mutated in {"failed", "crashed"}
            bad += not good
            colour = "green" if good else "bold red"
            table.add_row(mutant.name, mutant.test, unharmed[mutant.test], f"[{colour}]{mutated}[/]")
    console.print(table)
    noticed = len(mutants) - bad - skipped
    console.print(f"{noticed} of {len(mutants)} mutants were noticed, {skipped} need another machine")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
