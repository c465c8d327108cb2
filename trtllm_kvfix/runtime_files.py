"""Small files that processes of this user write for others to read. Nothing else in the package writes a file that the
user has not named.

Each is private, has a name that no other process has, and is whole from its first moment on. It goes when its process
ends; of those that tell how a process ended, a few are kept."""

import atexit
import functools
import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.foreign_files import text_of
from trtllm_kvfix.settings import Settings

BYTES_MAX = 16 << 20  # of a file of another process, which may have a long command line


def signature() -> dict[str, Any]:
    """An identity that no other process has, not even a later one with its number."""
    return {**Owner.ours()._asdict(), "process_start": process_start(os.getpid()) or 0}


def folder_of(settings: Settings) -> Path:
    """The folder in which the processes of this user write. Another user may have taken its name in the temporary
    folder; then all of ours, which all see that, use the home folder."""
    if settings.runtime_dir is not None:
        return Path(settings.runtime_dir)
    try:
        usual = Path(tempfile.gettempdir()) / f"trtllm-kvfix-{os.getuid()}"
        try:
            is_usable = _is_ours(usual)
        except OSError:
            is_usable = True  # not there yet
        return usual if is_usable else Path.home() / ".cache" / "trtllm-kvfix" / "run"
    except (OSError, RuntimeError) as error:  # a container in which nothing can be written; a user without a home
        raise SettingsError(
            f"there is no folder for what processes write down: {error}; kvfix.runtime_dir names one"
        ) from error


@contextmanager
def new_file(folder: Path, suffix: str) -> Iterator[int]:
    """A descriptor of a new file. It takes the name of this process's file of that suffix when the block ends, and none
    if the block raises: so the file is whole, is nobody else's, and no link is followed."""
    prepare(folder)
    file = Owner.ours().file(folder, suffix)
    draft = file.with_name(f"{file.name}.{threading.get_native_id()}.part")  # of this writer alone
    draft.unlink(missing_ok=True)  # of a killed process with our number
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def write(folder: Path, suffix: str, document: Any, *, kept_max: int = 0) -> Path:
    """Write this process's file of that suffix as JSON. It goes when the process ends, unless so many of ended
    processes are kept."""
    with new_file(folder, suffix) as descriptor:
        written, text = 0, json.dumps(document, indent=1).encode()
        while written < len(text):
            written += os.write(descriptor, text[written:])
    file = Owner.ours().file(folder, suffix)
    if kept_max:
        keep_newest_of_ended(folder, suffix, kept_max)
    else:
        forget_at_exit(file)
    return file


def confirm(folder: Path, suffix: str) -> None:
    """What this process's file says holds now, too."""
    os.utime(Owner.ours().file(folder, suffix), follow_symlinks=False)


def live(folder: Path, suffix: str, format_number: int) -> Iterator[dict[str, Any]]:
    """Entries of processes that still run here; files of ended ones are removed."""
    return (entry for entry, _ in live_and_age(folder, suffix, format_number))


def live_and_age(folder: Path, suffix: str, format_number: int) -> Iterator[tuple[dict[str, Any], float]]:
    """The same, each with the seconds since it was written or touched."""
    for file, entry in _entries(folder, suffix):
        if entry["format"] != format_number:
            continue  # of another version
        try:
            age_s = time.time() - file.stat().st_mtime
        except OSError:
            continue  # it went
        if process_start(entry["pid"]) == entry["process_start"]:
            yield entry, max(0.0, age_s)
        else:
            with suppress(OSError):  # of another user, who lets us read
                file.unlink(missing_ok=True)


def live_of_other_versions(folder: Path, suffix: str, format_number: int) -> Iterator[dict[str, Any]]:
    """Entries of processes that still run here, with the package as it was before it was upgraded."""
    for _, entry in _entries(folder, suffix):
        if entry["format"] != format_number and process_start(entry["pid"]) == entry["process_start"]:
            yield entry


def _entries(folder: Path, suffix: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """What processes of this host have written, those that have ended included."""
    for file in sorted(folder.glob(f"*{suffix}")):
        try:
            entry = json.loads(text_of(file, BYTES_MAX))
        except (OSError, ValueError, RecursionError):
            continue  # it went, or is not ours
        if not isinstance(entry, dict) or not isinstance(entry.get("format"), int) or not _names_a_process(entry):
            continue  # of another program
        if Owner(entry["pid"], entry["host"]).runs is not None:  # in a shared folder, its own host alone knows
            yield file, entry


def _names_a_process(entry: dict[str, Any]) -> bool:
    numbers = (entry.get("pid"), entry.get("process_start"))
    return all(isinstance(number, int) for number in numbers) and isinstance(entry.get("host"), str)


def refuse_unreadable(folder: Path) -> None:
    """A folder that is not there is right: nothing runs. In one that cannot be read, something may, and one that others
    may write in gets no file of a server."""
    try:
        os.scandir(folder).close()
        is_open = _others_may_write(folder.stat())
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(
            f"the folder of attestations is '{folder}', which cannot be read: {error.strerror}; kvfix.runtime_dir "
            "names one that the server's user and this one can read"
        ) from error
    if is_open:
        raise SettingsError(
            f"others may write in '{folder}', so servers refuse it, and what is in it may be anybody's; "
            "kvfix.runtime_dir names a folder that only the server's user can write in"
        )


def keep_newest_of_ended(folder: Path, suffix: str, count_max: int) -> None:
    """Remove old files of ended processes; those of living processes and of other hosts stay. Ranks that start together
    may do this at once, so a file may go at any time."""
    written: dict[Path, float] = {}
    for file in folder.glob(f"*{suffix}"):
        owner = Owner.of(file, suffix)
        if owner is not None and owner.runs is False:
            with suppress(OSError):
                written[file] = file.stat().st_mtime
    for file in sorted(written, key=lambda each: written[each], reverse=True)[count_max:]:
        file.unlink(missing_ok=True)


class Owner(NamedTuple):
    """The process that a file's name names. With the host, processes of two hosts never take each other's files."""

    pid: int
    host: str  # as `host_of_numbers` has it

    @staticmethod
    def ours() -> "Owner":
        return Owner(os.getpid(), host_of_numbers())

    @staticmethod
    def of(file: Path, suffix: str) -> "Owner | None":
        """None: another program's file."""
        pid, _, host = file.name.removesuffix(suffix).partition(".")
        return Owner(int(pid), host) if pid.isdecimal() and host else None

    def file(self, folder: Path, suffix: str) -> Path:
        return folder / f"{self.pid}.{self.host}{suffix}"

    @property
    def runs(self) -> bool | None:
        """None: only its own host knows."""
        return process_start(self.pid) is not None if self.host == host_of_numbers() else None


def host_of_numbers() -> str:
    """Name the host on which process numbers mean what they mean here. Containers on a host's network have its name,
    and numbers of their own."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  a link to nowhere
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}-{namespace:x}"


def process_start(pid: int) -> int | None:
    """Start of the process in clock ticks since boot. None if there is no process of that number."""
    try:
        # In bytes: the kernel cuts a name after 15 of them, which may be in the middle of a letter.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def prepare(folder: Path) -> None:
    """Make the folder. Others may write in the place where it is, so it must be this user's alone: its files can stop a
    start."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
        raise KvfixError(
            f"{folder} is a link, or belongs to another user, or others may write in it; it must be a folder of this "
            "user's that nobody else can write in. Remove it, or set kvfix.runtime_dir"
        )


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()  # with a link, another user could choose where we write
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not _others_may_write(found)


def _others_may_write(found: os.stat_result) -> bool:
    return bool(stat.S_IMODE(found.st_mode) & 0o022)


def forget_at_exit(file: Path) -> None:
    """Remove the file when this process exits. A process that is killed leaves its files."""
    _forget_at_exit(file, os.getpid())


@functools.cache
def _forget_at_exit(file: Path, pid: int) -> None:
    def forget() -> None:
        if os.getpid() == pid:  # a forked child has our exit handlers, not our entry
            file.unlink(missing_ok=True)

    atexit.register(forget)
