"""Planted races on the made-up driver: each is caught, each repaired twin is silent, held results are right."""

import json
import subprocess
from pathlib import Path

import pytest

from watch.gpu.planted import POSSIBLE
from watch.gpu.rows import FILES
from watch.tests.conftest import LIMIT_S, WATCH, Outcome, Watch, compiler, tells_raw_calls

TIMES = 3
CASES = [
    "copy_to_device",
    "copy_to_host",
    "copy_to_host_write",
    "generic_to_device",
    "legacy_stream",
    "copy_2d_to_host",
    "batch_in_any_order",
    "memset_bytes",
    "registered_memory",
    "neighbour_first",
    "two_uses_of_one_page",
    "whole_range_by_memset",
    "other_thread",
    "many_threads",
    pytest.param("by_raw_call", marks=pytest.mark.skipif(not tells_raw_calls(), reason="Linux does not hand it over")),
    "by_number",
    "by_readv",
    "by_preadv",
    "by_read",
    "by_recv",
    "by_write",
    "kernel_struct",
    "by_cuMemFreeHost",
    "by_cuMemHostUnregister",
]
# Whether the touch or the device came first does not show in these.
NO_OUTCOME = {"by_cuMemFreeHost", "by_cuMemHostUnregister"}


def planted(watch: Watch, name: str, arm: str, *options: str, **more: str) -> tuple[Outcome, int]:
    done = watch("watch.gpu.run_planted", name, arm, str(TIMES), options=options, **more)
    return done, int(json.loads(done.out)["right"])


@pytest.mark.parametrize("name", CASES)
def test_each_occurrence_is_caught_with_both_stacks(watch: Watch, name: str) -> None:
    done, right = planted(watch, name, "racy")
    grade, status = ("possible", 0) if name in POSSIBLE else ("races", 1)
    assert done.status == status
    assert done.times(grade) >= TIMES
    assert name in NO_OUTCOME or right == 0
    for race in done.report[grade]:
        for stack in ("touch_stack", "use_stack"):
            files = {(Path(frame["file"]).name, frame["line"] is not None) for frame in race[stack]["python"]}
            assert files & {(name, True) for name in FILES}, race[stack]


@pytest.mark.parametrize("name", CASES)
def test_the_repaired_twin_is_silent(watch: Watch, name: str) -> None:
    done, right = planted(watch, name, "repaired")
    assert (done.status, right) == (0, TIMES)
    assert done.times("races") == done.times("possible") == 0
    assert done.report["numbers"]["guarded"] > TIMES


def test_what_a_copy_reads_is_compared_where_code_of_go_is_loaded(watch: Watch, tmp_path: Path) -> None:
    """No page is protected there, so a touch is seen by what it changes."""
    library = tmp_path / "libgo.so"
    note = '.section .note.go.buildid, "a"; .long 4, 4, 4, 0x6f47, 0; .section .note.GNU-stack\n'
    subprocess.run([compiler(), "-shared", "-x", "assembler", "-o", library, "-"], input=note, text=True, check=True)
    racy, _ = planted(watch, "copy_to_device", "racy", LD_PRELOAD=str(library))
    assert (racy.status, racy.times("unordered")) == (1, TIMES)
    assert racy.report["numbers"]["steps"] == 0
    assert any("code of Go" in note for note in racy.report["notes"])
    repaired, right = planted(watch, "copy_to_device", "repaired", LD_PRELOAD=str(library))
    assert (repaired.status, right) == (0, TIMES)


@pytest.mark.parametrize("name", ["copy_to_device", "copy_to_host", "neighbour_first", "many_threads", "by_readv"])
def test_held_results_are_right(watch: Watch, name: str) -> None:
    done, right = planted(watch, name, "racy", "--hold")
    assert (done.status, right) == (1, TIMES)
    assert done.times() >= TIMES


def test_the_race_names_the_statement_and_the_byte(watch: Watch) -> None:
    done, _ = planted(watch, "copy_to_device", "racy")
    (race,) = done.races
    assert (race["touch"], race["use"], race["device"]) == ("write", "copy", "reads")
    assert (race["at"], race["bytes"]) == (20_000, 1 << 16)
    source = Path(__file__).parents[2] / "watch/gpu/planted.py"
    line = source.read_text().splitlines()[race["touch_stack"]["python"][0]["line"] - 1]
    assert line.strip() == "host[AT] = NEW"


def test_possible_races_fail_where_that_is_asked_for(watch: Watch) -> None:
    done, _ = planted(watch, "kernel_struct", "racy", "--strict")
    assert done.status == 1


def test_a_suppressed_race_is_counted_and_does_not_fail(watch: Watch, tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text("# ours\ntouch:*planted.py:* in write\n")
    done, right = planted(watch, "copy_to_device", "racy", "--suppress", str(known))
    assert (done.status, right) == (0, 0)
    assert (done.times(), done.times("suppressed")) == (0, TIMES)
    assert "0 races, 0 unordered, 0 possible, 1 suppressed" in done.said


def test_a_suppression_of_everything_is_refused(watch: Watch, tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    known.write_text("**\n")
    done = watch("watch.gpu.run_planted", "copy_to_device", "racy", "1", options=("--suppress", str(known)))
    assert done.status == 2
    assert "known.txt, line 1" in done.said


def test_a_report_that_cannot_be_written_is_bad_usage_after_the_races_are_shown(watch: Watch, tmp_path: Path) -> None:
    page = tmp_path / ("long" * 100)
    done = watch("watch.gpu.run_planted", "copy_to_device", "racy", "1", options=("--html", str(page)))
    assert done.status == 2
    assert "1 race, 0 unordered, 0 possible" in done.said
    assert "it cannot be written: File name too long" in done.said


def test_the_page_shows_both_stacks(watch: Watch, tmp_path: Path) -> None:
    page = tmp_path / "races.html"
    planted(watch, "copy_to_device", "racy", "--html", str(page))
    text = page.read_text()
    assert "planted.py" in text
    assert "The host wrote it while a copy still reads it" in text
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org", "")  # it loads nothing


READS, WRITES = ("sendmmsg", "process_vm_writev", "vmsplice", "msgsnd"), ("recvmmsg", "process_vm_readv", "msgrcv")


@pytest.fixture(scope="session")
def racy_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program, source = tmp_path_factory.mktemp("calls") / "racy", Path(__file__).with_name("racy_calls.cc")
    subprocess.run([compiler(), "-std=c++20", "-w", "-o", program, source, "-ldl", "-lpthread"], check=True)
    return program


def race_of(program: Path, name: str, environ: dict[str, str], folder: Path) -> tuple[str, str, str]:
    report = folder / "report.json"
    done = subprocess.run(
        [*WATCH, "--json", report, "--", program, name],
        env=environ,
        timeout=LIMIT_S,
        check=False,
        stdout=subprocess.PIPE,
    )
    (race,) = json.loads(report.read_text())["races"]
    assert done.returncode == 1
    return race["grade"], race["touch"], race["how"]


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_a_race_by_a_call_of_the_kernel_is_caught(
    racy_calls: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    touch = "read" if name in READS else "write"
    assert race_of(racy_calls, name, environ, tmp_path) == ("race", touch, name)


@pytest.mark.parametrize("name", ["cancelled", "jumped"])
def test_a_race_behind_a_call_that_was_left_in_the_middle_is_caught(
    racy_calls: Path, environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    """What was open for the call is closed, though it never returns."""
    assert race_of(racy_calls, name, environ, tmp_path) == ("race", "write", "")
