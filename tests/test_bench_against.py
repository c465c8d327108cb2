"""bench/against.py: two packages side by side, in turns, by the rows that both have."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import argparse, csv, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true")
parser.add_argument("--results", type=pathlib.Path)
options = parser.parse_args()
commit = os.environ.get("KVFIX_COMMIT", "here")
turns = pathlib.Path(__file__).with_name("turns")
turns.open("a").write(commit + "\\n")
number = turns.read_text().count(commit + "\\n")
assert options.quick
if commit == "broken":
    raise SystemExit("this package has no such name")
with (options.results / "rows.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["workload", "block_size", "manager", "metric", "median"])
    writer.writerow(["chat", 16, "ours", "admit_us", number * (10 if commit == "here" else 20)])
    writer.writerow(["chat", 16, "ours", f"only_{commit}_us", 1])
"""


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return import_module("against")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "bench_small.py"
    file.write_text(PROGRAM)
    return file


def test_sides_take_turns_and_medians_are_of_common_rows(against: ModuleType, program: Path) -> None:
    other = against.Side("v1", Path(sys.executable), "other")
    here = against.Side("here", Path(sys.executable), None)
    (row,) = against.compare(program, other, here, 3)
    assert (row.key, row.theirs, row.ours, row.ratio) == (("chat", "16", "ours", "admit_us"), 40, 20, 0.5)
    assert program.with_name("turns").read_text().split() == ["other", "here", "here", "other", "other", "here"]
    assert "ratio below 1: less here than at v1" in against.table([row], "v1")[-1]


def test_noise_of_the_machine_is_said_below_the_table(against: ModuleType) -> None:
    ours = against.Compared(("chat", "16", "ours", "admit_us"), 40, 20, 3)
    floors = [
        against.Compared(("chat", "16", name, "admit_us"), 40, took, 3)
        for name, took in (("floor", 30), ("floor, again", 50))
    ]
    assert "between 0.75 and 1.25, ratios are noise" in against.table([ours, *floors], "v1")[-2]
    assert not any("noise" in line for line in against.table([ours], "v1"))


def test_program_that_the_other_commit_cannot_run_is_left_out(
    against: ModuleType, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = against.Side("v1", Path(sys.executable), "broken")
    assert against.compare(program, broken, against.Side("here", Path(sys.executable), None), 3) == []
    shown = capsys.readouterr()
    assert "bench_small.py does not run on v1: left out" in shown.out
    assert "this package has no such name" in shown.err


def test_program_that_does_not_run_here_is_an_error(against: ModuleType, program: Path) -> None:
    other, here = (
        against.Side("v1", Path(sys.executable), "other"),
        against.Side("here", Path(sys.executable), "broken"),
    )
    with pytest.raises(SystemExit, match="does not run here"):
        against.compare(program, other, here, 3)


def test_revision_and_programs_are_checked_before_anything_is_built(against: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no commit"):
        against.resolved("no-such-branch")
    with pytest.raises(SystemExit, match="known are admission"):
        against.program_of("admision")


def test_make_asks_for_a_revision() -> None:
    planned = subprocess.run(["make", "-n", "bench-against"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "which commit?" in planned.stdout
    named = subprocess.run(
        ["make", "-n", "bench-against", "REV=v1"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "bench/against.py v1" in named.stdout
