"""What running processes of this user write down for others to read: small files, gone when their process is."""

import atexit
import functools
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtllm_kvfix.errors import KvfixError


def signature() -> dict[str, Any]:
    """What tells this process from all others, and from a later one with its number."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process_start": process_start(os.getpid()) or 0}


def replace(folder: Path, name: str, entry: dict[str, Any]) -> Path:
    """Write this process's file of that name, whole or not at all; it goes when the process ends."""
    file = folder / name
    draft = file.with_suffix(".part")
    _prepare(folder)
    draft.write_text(json.dumps(entry))
    draft.replace(file)
    _forget_at_exit(file, os.getpid())
    return file


def live(folder: Path, suffix: str, format_number: int) -> Iterator[dict[str, Any]]:
    """Entries of processes that still run on this host; files of ended ones are removed."""
    for file in sorted(folder.glob(f"*{suffix}")):
        try:
            entry = json.loads(file.read_text())
        except (OSError, ValueError):
            continue  # it went, or is not ours
        if entry.get("format") != format_number or entry["host"] != socket.gethostname():
            continue  # a shared folder: only its own host can tell whether the process lives
        if process_start(entry["pid"]) == entry["process_start"]:
            yield entry
        else:
            file.unlink(missing_ok=True)


def process_start(pid: int) -> int | None:
    """When the process started, in clock ticks since boot, or None when there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _prepare(folder: Path) -> None:
    """A folder in a place where others write, too, must be this user's alone: what is in it stops starts."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise KvfixError(
            f"{folder} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; it must be this "
            "user's and writable by nobody else. Remove it, or set kvfix.runtime_dir"
        )


@functools.cache
def _forget_at_exit(file: Path, pid: int) -> None:
    def forget() -> None:
        if os.getpid() == pid:  # a forked child has our exit handlers, not our entry
            file.unlink(missing_ok=True)

    atexit.register(forget)
