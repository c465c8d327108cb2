"""The process that `run` leaves behind: it names a server that lost the hook, and leaves the command alone."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests import fresh
from tests.overlay.test_launch import executable, run
from tests.overlay.upstream_double import environment
from trtllm_kvfix.overlay import watcher

T = TypeVar("T")
PYTHON = sys.executable
NOBODY = 1 << 22  # greater than any process's number
WITHOUT = "runs TensorRT-LLM WITHOUT the fixes"
# Maps what stands for TensorRT-LLM's library, and says so; ends when its standard input does.
SERVER = """
import mmap, sys
file = open("libtensorrt_llm.so", "rb")
library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def served(small: Path) -> Path:
    (small / "libtensorrt_llm.so").write_bytes(b"library")
    (small / "server.py").write_text(SERVER)
    (small / "hooked.py").write_text("import small_fixes, tensorrt_llm\n" + SERVER)
    (small / "forks.py").write_text(
        "import os, small_fixes, tensorrt_llm\npid = os.fork()\n" + SERVER + "if pid: os.waitpid(pid, 0)\n"
    )
    executable(small / "launch.sh", f"#!/bin/sh\n:; PYTHONPATH={small}; exec {PYTHON} server.py\n")
    return small


def started(folder: Path, command: list[str], grace_s: float) -> subprocess.Popen[str]:
    """Become the command as `run` does, with a watcher that is less patient."""
    code = (
        "import os, sys; from trtllm_kvfix.overlay import launch, watcher\n"
        "os.environ.update(launch.variables(launch.load(environ={}), os.environ, 'job-' + str(os.getpid())))\n"
        "watcher.start('TRTLLM_KVFIX_JOB', os.environ['TRTLLM_KVFIX_JOB'], {}, float(sys.argv[1]))\n"
        "os.execvp(sys.argv[2], sys.argv[2:])\n"
    )
    pipe = subprocess.PIPE
    line = [PYTHON, "-c", code, str(grace_s), *command]
    return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment(folder))


def test_a_server_that_lost_the_hook_is_named_while_it_runs(served: Path) -> None:
    with started(served, ["./launch.sh"], 0.1) as server:
        assert server.stdin is not None and server.stderr is not None
        said = server.stderr.readline()
        assert f"process {server.pid} {WITHOUT}" in said and "sets PYTHONPATH without $PYTHONPATH" in said
        server.stdin.close()
        assert (server.wait(), server.stderr.read()) == (0, ""), "it says so once"


@pytest.mark.parametrize("how", ["exec -c", "env -i", ":; exec env -i"])
def test_a_server_that_lost_all_variables_is_named(served: Path, how: str) -> None:
    executable(served / "bare.sh", f"#!/bin/bash\n{how} {PYTHON} server.py\n")
    with started(served, ["./bare.sh"], 0.1) as server:
        assert server.stdin is not None and server.stderr is not None
        said = server.stderr.readline()
        assert WITHOUT in said
        named = int(said.partition("process ")[2].split()[0])
        assert b"TRTLLM_KVFIX_JOB" not in _content(Path(f"/proc/{named}/environ"))
        server.communicate("")


LAUNCHES = """
import subprocess, sys
server = subprocess.Popen([sys.executable, "server.py"], env={}, stdin=int(sys.argv[1]), stdout=subprocess.PIPE)
server.stdout.readline()
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_a_server_whose_launcher_has_ended_is_still_of_the_job(served: Path) -> None:
    end, held = os.pipe()
    pipe = subprocess.PIPE
    line = [PYTHON, "-c", LAUNCHES, str(end)]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, cwd=served, env={}, pass_fds=[end]) as launcher:
        assert launcher.stdout is not None
        server = int(launcher.stdout.readline())
        look = watcher.Watcher(b"TRTLLM_KVFIX_JOB=none", os.getpid(), 60)
        assert look.look(0) is None and len(look.suspects) == 1
        launcher.communicate("")
    assert look.look(60) == server
    os.close(held)
    os.close(end)


@pytest.mark.parametrize("program", ["hooked.py", "forks.py"])
def test_a_server_that_has_the_hook_is_not_and_neither_is_its_fork(served: Path, program: str) -> None:
    with started(served, [PYTHON, program], 0) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdout.readline()
        look = watcher.Watcher(f"TRTLLM_KVFIX_JOB=job-{server.pid}".encode(), server.pid, 0)
        assert look.look(0) is None and look.settled
        _, error = server.communicate("")
        assert WITHOUT not in error


def test_the_command_keeps_its_process_its_parent_and_its_streams(served: Path) -> None:
    code = (
        "import os; print(os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), sorted(os.listdir('/proc/self/fd')))"
    )
    plain = [PYTHON, "-c", code]
    with started(served, [*plain, "x"], 60) as server:
        output, _ = server.communicate("")
        pid, parent, group, session, *_ = output.split()
        assert [int(pid), int(parent)] == [server.pid, os.getpid()]
        assert [int(group), int(session)] == [os.getpgid(0), os.getsid(0)]
        bare = subprocess.run(plain, capture_output=True, text=True, check=True, input="")
        assert output.partition("[")[2] == bare.stdout.partition("[")[2]


def test_the_command_has_no_child_and_the_watcher_ends_with_it(served: Path) -> None:
    with started(served, [PYTHON, "server.py"], 60) as server:
        assert server.stdin is not None and server.stdout is not None and server.stderr is not None
        server.stdout.readline()
        assert Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text() == ""
        of_job = _of_job(server.pid)
        assert len(of_job) == 1
        assert (of_job[0].parent / "fd" / "1").readlink() == Path(os.devnull)
        server.kill()
        server.wait()
        server.stderr.read()  # its end is the watcher's: nobody else has it
        assert _until(lambda: not _content(of_job[0]))


def _until(found: Callable[[], T]) -> T:
    """What is found at last, or within twenty seconds."""
    deadline = time.monotonic() + 20
    while not (result := found()) and time.monotonic() < deadline:
        os.sched_yield()
    return result


def _of_job(command: int) -> list[Path]:
    """Waits for the watcher's own exec, which the command does not."""
    job = f"TRTLLM_KVFIX_JOB=job-{command}".encode()
    return _until(lambda: [each for each in Path("/proc").glob("[0-9]*/cmdline") if job in _content(each)])


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


# A command that looks for the watcher of its own job. Processes come and go meanwhile, and the watcher's own exec is
# among what happens.
LOOKS = """
import os, pathlib, time
job = b"TRTLLM_KVFIX_JOB=" + os.environ["TRTLLM_KVFIX_JOB"].encode()
def line(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    if any(b"watcher.py" in line(each) and job in line(each) for each in pathlib.Path("/proc").glob("[0-9]*")):
        print("watched")
        break
"""


def test_run_leaves_a_watcher_and_says_where_it_cannot(served: Path) -> None:
    (served / "looks.py").write_text(LOOKS)
    done = run(served, "run", "--", PYTHON, "looks.py")
    assert done.stdout == "watched\n" and done.stderr == ""
    (served / "sitecustomize.py").write_text("import os; del os.pidfd_open\n")
    code = "from trtllm_kvfix.__main__ import main; main()"
    done = fresh.run([PYTHON, "-c", code, "run", "--", "echo", "started"], cwd=served, env=environment(served))
    assert done.stdout == "started\n"
    assert "nothing watches whether the fixes reach the server" in done.stderr and "pidfd_open" in done.stderr


def test_a_process_is_named_only_when_its_time_is_up(served: Path) -> None:
    look = watcher.Watcher(b"TRTLLM_KVFIX_JOB=none", NOBODY, 60)
    assert look.look(0) is None and not look.suspects
    with started(served, ["./launch.sh"], 60) as server:
        assert server.stdout is not None
        server.stdout.readline()
        look = watcher.Watcher(f"TRTLLM_KVFIX_JOB=job-{server.pid}".encode(), server.pid, 60)
        assert look.look(0) is None and len(look.suspects) == 1
        assert look.look(59) is None
        assert look.look(60) == server.pid
        server.communicate("")


def test_a_command_that_ends_before_that_is_named_at_its_end(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends as soon as it has been looked at."""
    said: list[str] = []
    look = watcher.Watcher.look
    with started(served, ["./launch.sh"], 60) as server:
        assert server.stdin is not None and server.stdout is not None
        stdin = server.stdin

        def look_and_end(self: watcher.Watcher, now: float) -> int | None:
            found = look(self, now)
            stdin.close()
            return found

        server.stdout.readline()
        pidfd = os.pidfd_open(server.pid)
        monkeypatch.setattr(watcher, "PIDFD", pidfd)
        monkeypatch.setattr(watcher, "INTERVAL_MIN_S", 0)
        monkeypatch.setattr(watcher, "say", said.append)
        monkeypatch.setattr(watcher.Watcher, "look", look_and_end)
        watcher.main(f"TRTLLM_KVFIX_JOB=job-{server.pid}".encode(), server.pid, 60)
        os.close(pidfd)
    assert said == ["the command that has ended"]
