"""The numbers of arguments in again.def against the C library's headers, as far as these declare the functions."""

import re
import subprocess
from pathlib import Path

from watch.tests.conftest import ROOT, compiler

LISTED = ROOT / "watch/cpp/hostrace/again.def"
# Of those that take more, or fewer, by what they are told: at most so many.
OPEN_ENDED = {
    "open",
    "open64",
    "openat",
    "openat64",
    "ioctl",
    "fcntl",
    "fcntl64",
    "semctl",
    "mq_open",
    "ptrace",
    "clone",
}
HEADERS = (
    "dirent.h",
    "fcntl.h",
    "grp.h",
    "ifaddrs.h",
    "mqueue.h",
    "net/if.h",
    "netdb.h",
    "poll.h",
    "pthread.h",
    "pty.h",
    "sched.h",
    "signal.h",
    "spawn.h",
    "stdio.h",
    "stdlib.h",
    "sys/epoll.h",
    "sys/eventfd.h",
    "sys/fanotify.h",
    "sys/inotify.h",
    "sys/ioctl.h",
    "sys/ipc.h",
    "sys/klog.h",
    "sys/mman.h",
    "sys/mount.h",
    "sys/msg.h",
    "sys/pidfd.h",
    "sys/ptrace.h",
    "sys/quota.h",
    "sys/random.h",
    "sys/resource.h",
    "sys/select.h",
    "sys/sem.h",
    "sys/sendfile.h",
    "sys/shm.h",
    "sys/signalfd.h",
    "sys/socket.h",
    "sys/stat.h",
    "sys/statfs.h",
    "sys/statvfs.h",
    "sys/swap.h",
    "sys/sysinfo.h",
    "sys/time.h",
    "sys/timerfd.h",
    "sys/times.h",
    "sys/timex.h",
    "sys/uio.h",
    "sys/utsname.h",
    "sys/wait.h",
    "sys/xattr.h",
    "threads.h",
    "time.h",
    "unistd.h",
    "utime.h",
)
COUNT = """
template <typename F> struct Takes;
template <typename R, typename... A> struct Takes<R (*)(A...)> { static constexpr int count = sizeof...(A); };
template <typename R, typename... A> struct Takes<R (*)(A...) noexcept> : Takes<R (*)(A...)> {};
template <typename R, typename... A> struct Takes<R (*)(A..., ...)> : Takes<R (*)(A...)> {};
template <typename R, typename... A> struct Takes<R (*)(A..., ...) noexcept> : Takes<R (*)(A...)> {};
"""


def refused(listed: dict[str, int], folder: Path) -> tuple[set[str], set[str]]:
    """Whose number is wrong, and who is not declared."""
    source = folder / "count.cc"
    included = [f"#if __has_include(<{header}>)\n#include <{header}>\n#endif" for header in HEADERS]
    asked = [
        f'static_assert(Takes<decltype(&::{name})>::count {"<" if name in OPEN_ENDED else "=="} {takes}, "!{name}!");'
        for name, takes in listed.items()
    ]
    source.write_text("\n".join([*included, COUNT, *asked]))
    flags = ("-std=c++20", "-fsyntax-only", "-w", "-fmax-errors=0")
    said = subprocess.run([compiler(), *flags, source], capture_output=True, text=True, check=False).stderr
    errors = [line for line in said.splitlines() if "error:" in line]
    wrong = {name for line in errors for name in re.findall(r"!(\w+)!", line)}
    first = source.read_text().splitlines().index(asked[0]) + 1
    lines = {int(at) for line in errors for at in re.findall(r"count\.cc:(\d+):", line)}
    return wrong, {name for at, name in enumerate(listed, first) if at in lines} - wrong


def test_each_function_is_listed_with_as_many_arguments_as_it_takes(tmp_path: Path) -> None:
    rows = re.findall(r"^[A-Z_]+\((\w+), (\d)[,)]", LISTED.read_text(), re.MULTILINE)
    listed = {name: int(takes) for name, takes in rows}
    assert len(listed) == LISTED.read_text().count("\n") - 4  # each line behind the comment
    wrong, unknown = refused(listed, tmp_path)
    assert wrong == set()
    assert len(unknown) < len(listed) / 4, unknown
    off_by_one = {name: takes + 1 for name, takes in listed.items() if name not in OPEN_ENDED}
    assert refused(off_by_one, tmp_path)[0] == set(off_by_one) - unknown
