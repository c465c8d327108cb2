"""hostrace leaves exit codes, signals, forked children, other handlers and captured streams as they are."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hostrace import launch
from hostrace.errors import HostraceError
from watch.tests.conftest import LIMIT_S, ROOT, WATCH, Outcome, Watch, tells_raw_calls
from watch.tests.programs import BESIDE_A_CALL


def ran(watch: Watch, name: str, *options: str, **more: str) -> Outcome:
    return watch("watch.tests.programs", name, options=options, **more)


def test_a_process_that_is_killed_leaves_its_report(watch: Watch) -> None:
    done = ran(watch, "races_and_is_killed")
    assert done.status == -signal.SIGKILL
    assert done.times() == 1


def test_the_command_keeps_its_exit_code(watch: Watch) -> None:
    clean, racy = ran(watch, "fails"), ran(watch, "races_and_fails")
    assert (clean.status, clean.times()) == (3, 0)
    assert (racy.status, racy.times()) == (3, 1)


def test_races_of_programs_that_follow_one_another_in_a_process_are_counted_apart(watch: Watch) -> None:
    done = ran(watch, "races_and_becomes_another")
    assert (done.status, [race["times"] for race in done.races]) == (3, [4, 1])
    (one,), (other,) = (race["pids"] for race in done.races)
    assert one == other


def test_a_forked_child_is_left_alone(watch: Watch) -> None:
    done = ran(watch, "forks")
    assert (done.status, done.times()) == (0, 0)


def test_faulthandler_does_not_see_our_faults(watch: Watch) -> None:
    done = ran(watch, "faulthandler_and_a_race")
    assert (done.status, done.times()) == (1, 1)
    assert "Fatal Python error" not in done.said


def test_a_fault_of_the_program_is_its_own(watch: Watch) -> None:
    done = ran(watch, "faulthandler_and_a_crash")
    assert done.status == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.said
    assert done.times() == 0


def test_a_handler_of_the_program_gets_what_is_sent_to_it(watch: Watch) -> None:
    done = ran(watch, "own_handler")
    assert (done.status, done.times()) == (1, 1)


@pytest.mark.parametrize("name", BESIDE_A_CALL)
def test_a_call_that_waits_opens_no_page_that_it_does_not_touch(watch: Watch, name: str) -> None:
    """Not those behind what it reads into, nor those at what it does not take."""
    if name.startswith("raw") and not tells_raw_calls():
        pytest.skip("Linux does not hand over such calls")
    done = ran(watch, name)
    assert (done.status, done.times()) == (1, 1), done.said


def test_nothing_is_enqueued_on_a_captured_stream(watch: Watch) -> None:
    done = ran(watch, "captures")
    assert (done.status, done.times()) == (0, 0)
    assert done.report["numbers"]["guarded"] == 0
    assert "no use of pinned memory was seen, so this says nothing about races" in done.said


def test_a_hold_gives_up_where_the_device_waits_for_the_host(watch: Watch) -> None:
    done = ran(watch, "waits_for_the_host", "--hold", "--hold-limit", "0.05")
    assert (done.status, done.times()) == (1, 1)
    assert done.report["numbers"]["gave_up"] == 1
    assert "did not finish in time" in done.said


def test_neighbours_in_a_page_are_no_race(watch: Watch) -> None:
    done = ran(watch, "polls_a_flag")
    assert (done.status, done.times()) == (0, 0)
    assert done.report["numbers"]["steps"] >= 144


@pytest.mark.parametrize(
    ("variable", "reason"), [("FAKE_DRIVER_REFUSES", "driver refuses"), ("FAKE_CUPTI_TAKEN", "another subscriber")]
)
def test_a_machine_where_nothing_can_be_watched_says_so(watch: Watch, variable: str, reason: str) -> None:
    done = ran(watch, "fails", **{variable: "1"})
    assert done.status == 2
    assert reason in done.said
    assert "usual cause" in done.said or variable == "FAKE_CUPTI_TAKEN"  # that one is the cause


def test_a_machine_without_a_driver_is_told_the_usual_causes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROBE", launch.PROBE.replace("libcuda.so.1", "libcuda-of-nobody.so.1"))
    with pytest.raises(HostraceError, match=r"no CUDA driver: libcuda-of-nobody.*usual causes: .* --gpus"):
        launch.probe(os.environ, tmp_path)


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "CUDA_INJECTION64_PATH"])
def test_a_command_that_drops_what_loads_us_is_not_taken_for_clean(environ: dict[str, str], variable: str) -> None:
    command = [*WATCH, "--", "env", "-u", variable, sys.executable, "-m", "watch.tests.programs", "polls_a_flag"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert variable in done.stderr
    assert "0 processes" in done.stderr


@pytest.mark.parametrize(
    ("script", "status", "watched"), [("exec", 2, 0), ("", 0, 0), ("$0 -m {} polls_a_flag;", 0, 1)]
)
def test_a_program_that_is_started_without_what_loads_us_is_named(
    environ: dict[str, str], script: str, status: int, watched: int
) -> None:
    """In the place of the command, nothing could be watched. Beside others, its name has to do."""
    known = " ".join(f"{name}={environ[name]}" for name in ("PYTHONPATH", "LD_LIBRARY_PATH"))
    program = "watch.tests.programs"
    script = f"{script.format(program)} env -i {known} $0 -m {program} polls_a_flag"
    command = [*WATCH, "--", "sh", "-c", f"{script}{'' if status else '; exit $?'}", sys.executable]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == status
    assert f"{sys.executable} was started without LD_PRELOAD and CUDA_INJECTION64_PATH" in done.stderr
    assert f"watched in {watched} process" in done.stderr


def test_a_command_that_was_watched_until_it_started_such_a_program_was_watched(watch: Watch) -> None:
    done = ran(watch, "races_and_becomes_one_that_is_not_watched")
    assert (done.status, done.times(), done.report["verdict"], done.report["processes"]) == (1, 1, "race", 1)
    assert "was started without LD_PRELOAD and CUDA_INJECTION64_PATH" in done.said


def test_a_command_without_cuda_is_no_failure(environ: dict[str, str]) -> None:
    command = [*WATCH, "--", "env", "-u", "CUDA_INJECTION64_PATH", sys.executable, "-c", "print(7)"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert "No process loaded the library" in done.stderr


def test_a_command_gets_the_files_that_hostrace_was_given(environ: dict[str, str]) -> None:
    """As a shell gives them for <(...), and a service manager those of its sockets."""
    reader, writer = os.pipe()
    os.write(writer, b"given")
    os.close(writer)
    command = [*WATCH, "--", "cat", f"/dev/fd/{reader}"]
    done = subprocess.run(command, env=environ, pass_fds=[reader], stdout=subprocess.PIPE, timeout=LIMIT_S, check=False)
    os.close(reader)
    assert (done.returncode, done.stdout) == (0, b"given")


def test_another_injected_tool_is_not_put_aside(watch: Watch) -> None:
    done = ran(watch, "fails", CUDA_INJECTION64_PATH="libtool.so")
    assert done.status == 2
    assert "another tool" in done.said


def test_a_command_that_is_not_there_is_a_wrong_use(watch: Watch) -> None:
    done = watch("watch.tests.no_such_module")
    assert done.status == 1  # Python's own
    assert done.report["processes"] == 0
