"""A copy of the tree and its build folder. One build folder serves all mutants, so each costs what it recompiles."""

import shutil
import subprocess
from pathlib import Path

import click

from tests.mutants.mutant import ROOT, WORLDS, Mutant

WORLD_STEPS = 400_000  # most mistakes show within 10,000
TEST_SECONDS_MAX = 300


def copy_tree(to: Path) -> None:
    """Copy the files that git knows or would take in, so that a test that is not committed yet counts."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        source, copy = ROOT / name, to / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():  # what is the same need not be compiled
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    for path in [path for path in to.rglob("*") if path.is_file()]:
        if str(path.relative_to(to)) not in names:
            path.unlink()


class Workshop:
    def __init__(self, folder: Path, jobs: int) -> None:
        self.tree, self.build, self.jobs = folder / "tree", folder / "build", jobs
        self.programs = folder / "programs"
        copy_tree(self.tree)
        # Checks stay in, for want of NDEBUG. Symbols for a debugger would make each link cost as much as a compilation.
        options = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1", "-DKVFIX_KERNELS=OFF"]
        options += ["-DKVFIX_BUILD_TESTS=ON", "-DKVFIX_TESTS_APART=ON", "-DCMAKE_REQUIRE_FIND_PACKAGE_GTest=ON"]
        _must_run(["cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja", *options])

    def compile(self, programs: set[str]) -> None:
        jobs = str(self.jobs)
        _must_run(["cmake", "--build", str(self.build), "--target", *sorted(programs), "--parallel", jobs])

    def built(self, program: str, label: str) -> Path:
        """A copy of the program, which may run while the next one is compiled."""
        copy = self.programs / label
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(self.build / "bin" / program, copy)
        return copy

    def built_with(self, mutant: Mutant, label: str) -> Path:
        path = self.tree / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutant.apply(before), encoding="utf-8")
        try:
            self.compile({mutant.program})
        finally:
            path.write_text(before, encoding="utf-8")
        return self.built(mutant.program, label)


def run_test(program: Path, test: str) -> str:
    """'passed', 'failed', 'hung', 'skipped' (it needs another machine), or what else became of that test."""
    arguments = ["--steps", str(WORLD_STEPS)] if test == WORLDS else [f"--gtest_filter={test}", "--gtest_brief=1"]
    command = [str(program), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return "hung"
    finally:
        program.unlink()
    if test == WORLDS:
        return {0: "passed", 1: "failed"}.get(done.returncode, "crashed")
    if "[==========] 1 test from" not in done.stdout:
        return "crashed" if done.returncode < 0 else "not found"
    if "[  SKIPPED ] 1 test" in done.stdout:
        return "skipped"
    return "passed" if done.returncode == 0 else "failed"


def _must_run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
