"""A second way to see that the hook has reached the server, which needs no variable of Python's.

`run` leaves a small process behind that looks at the processes of its job: those that have its variable, and those that
descend from the command, because what takes away PYTHONPATH often takes away all variables (`env -i`, `exec -c`). One
that has TensorRT-LLM's libraries in its memory without the hook's mark has lost the hook on its way, perhaps in a
launch script, and the watcher says so.

It runs this file alone (`python -I -S watcher.py`), so only modules of the standard library are imported here. It
touches nothing of the command's: no group, no session, no descriptor besides standard error. It ends with the command
and never before: in a container the command may be process 1, which inherits the watcher and would have to bury it.
"""

import mmap
import os
import select
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

MARK = "trtllm-kvfix-hook"  # /proc/PID/maps shows it as /memfd:...
LIBRARIES = (b"/libtensorrt_llm", b"/tensorrt_llm/bindings")
GRACE_S = 60.0  # a worker that MPI spawned has TensorRT-LLM before it gets our variables
INTERVAL_MIN_S, INTERVAL_MAX_S, INTERVAL_GROWTH = 2.0, 30.0, 1.2
STDERR = 2
PIDFD = 3  # in the watcher
DESCRIPTORS_MAX = 1 << 16

_marks: list[mmap.mmap] = []


def leave_mark() -> None:
    """The hook is in this process. A fork has the mark as well, like the hook itself, and an exec loses both."""
    if _marks:
        return
    descriptor = os.memfd_create(MARK)
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        _marks.append(mmap.mmap(descriptor, mmap.PAGESIZE))
    finally:
        os.close(descriptor)


def start(variable: str, job: str, environ: Mapping[str, str], grace_s: float = GRACE_S) -> None:
    """Leave a watcher of this process behind, in an environment of its own, and nothing to wait for. Raises OSError
    where none can be."""
    Path("/proc/self/maps").read_bytes()
    command = os.getpid()
    pidfd = os.pidfd_open(command)
    try:
        child = os.fork()
        if child == 0:
            _become_watcher(pidfd, [f"{variable}={job}", f"{command}", f"{grace_s}"], environ)
        os.waitpid(child, 0)
    finally:
        os.close(pidfd)


def _become_watcher(pidfd: int, arguments: list[str], environ: Mapping[str, str]) -> None:
    """In the child: its own child belongs to nobody, and has nothing of the command's but standard error."""
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            pidfd = os.dup(pidfd) if pidfd <= STDERR else pidfd
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            if pidfd == PIDFD:
                os.set_inheritable(PIDFD, True)
            else:
                os.dup2(pidfd, PIDFD)
            os.closerange(PIDFD + 1, DESCRIPTORS_MAX)
            os.chdir("/")
            os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, *arguments], environ)
    finally:
        os._exit(0)


class Watcher:
    def __init__(self, variable: bytes, command: int, grace_s: float) -> None:
        self.variable = variable
        self.grace_s = grace_s
        self.command = b"%d" % command
        self.descendants: dict[bytes, bytes] = {}  # of the command, with their starts; some have lost their parents
        self.settled: set[bytes] = set()  # processes of the job that have the mark
        self.suspects: dict[bytes, float] = {}  # since when

    def look(self, now: float) -> int | None:
        """A process that has had TensorRT-LLM without the hook for too long."""
        before, self.descendants = self.descendants, {}  # without those that have ended: numbers come again
        named = None
        for process in sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()):
            try:
                found = self._suspect(Path(f"/proc/{process}"), before)
            except OSError:
                continue  # it is gone, or another user's
            if found is not None and now - self.suspects.setdefault(found, now) >= self.grace_s:
                named = named or process
        return named

    def _suspect(self, process: Path, before: Mapping[bytes, bytes]) -> bytes | None:
        # In bytes: the name in it may be cut in the middle of a letter.
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        number, parent, start = process.name.encode(), fields[1], fields[19]
        if parent == self.command or parent in self.descendants or before.get(number) == start:
            self.descendants[number] = start
        is_related = number == self.command or number in self.descendants
        if not is_related and self.variable not in (process / "environ").read_bytes().split(b"\0"):
            return None
        name = number + b" " + start
        if name in self.settled:
            return None
        maps = (process / "maps").read_bytes()
        if MARK.encode() in maps:
            self.settled.add(name)
            self.suspects.pop(name, None)
            return None
        return name if any(each in maps for each in LIBRARIES) else None


def say(which: str) -> None:
    line = (
        f"[trtllm-kvfix] error: {which} runs TensorRT-LLM WITHOUT the fixes: the hook of `trtllm-kvfix run` did not "
        "reach it; usual cause: a launch script that sets PYTHONPATH without $PYTHONPATH, or starts python -I; "
        "`trtllm-kvfix enable` installs the hook without variables\n"
    )
    with suppress(OSError):  # nobody reads any more
        os.write(STDERR, line.encode())


def main(variable: bytes, command: int, grace_s: float) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    poll = select.poll()
    poll.register(PIDFD, select.POLLIN)
    watcher, interval_s = Watcher(variable, command, grace_s), min(INTERVAL_MIN_S, grace_s / 2)
    has_said = False
    while not poll.poll(None if has_said else interval_s * 1000):
        found = watcher.look(monotonic())
        if found is not None:
            say(f"process {found}")
            has_said = True
        interval_s = min(INTERVAL_MAX_S, interval_s * INTERVAL_GROWTH)
    if watcher.suspects and not watcher.settled and not has_said:
        say("the command that has ended")


if __name__ == "__main__":
    main(os.fsencode(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
