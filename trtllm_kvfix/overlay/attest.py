"""Each process writes down which fixes it runs and over what: for `status`, and for the other ranks to compare."""

import atexit
import functools
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtllm_kvfix import __version__
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay.registry import Report

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Attestation:
    format: int
    package: str
    tensorrt_llm: str | None
    variant: str
    host: str
    job: str
    pid: int
    process_start: int  # tells this process from a later one with its number
    command: str
    rank: int
    world_size: int
    started: bool  # an engine runs here; others only imported TensorRT-LLM
    fixes: dict[str, str]  # id: applied, off, waiting, fixed-upstream, not-applicable, unknown
    choices: dict[str, str]  # id: auto, on, off
    seams: dict[str, str]  # attribute: hash of what was there
    aliases: list[str]

    @staticmethod
    def of(
        report: Report, *, variant: str, job: str, rank: int, world_size: int, started: bool, aliases: list[str]
    ) -> "Attestation":
        return Attestation(
            format=FORMAT,
            package=__version__,
            tensorrt_llm=distribution_version("tensorrt_llm"),
            variant=variant,
            host=socket.gethostname(),
            job=job,
            pid=os.getpid(),
            process_start=process_start(os.getpid()) or 0,
            command=" ".join(sys.argv)[:200],
            rank=rank,
            world_size=world_size,
            started=started,
            fixes={status.id: status.word for status in report.fixes},
            choices={status.id: status.choice for status in report.fixes},
            seams={name: value for status in report.fixes for name, value in status.seams.items()},
            aliases=aliases,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What keeps two processes from being ranks of one engine. A fix whose modules only one has imported yet differs
    in nothing that counts."""
    found = [
        f"{key} {ours[key]} / {theirs[key]}"
        for key in ("format", "package", "tensorrt_llm", "variant")
        if ours[key] != theirs[key]
    ]
    for kind, label in (("choices", "setting of"), ("fixes", "fix"), ("seams", "seam")):
        for name in sorted({*ours[kind], *theirs[kind]}):
            pair = (ours[kind].get(name, "waiting"), theirs[kind].get(name, "waiting"))
            if pair[0] != pair[1] and "waiting" not in pair:
                found.append(f"{label} {name} {pair[0]} / {pair[1]}")
    return found


def write(folder: Path, attestation: Attestation) -> Path:
    """Replace this process's entry; it goes when the process ends."""
    file = folder / f"{attestation.pid}.json"
    draft = file.with_suffix(".part")
    try:
        _prepare(folder)
        draft.write_text(json.dumps(attestation.as_dict()))
        draft.replace(file)
    except OSError as error:
        raise KvfixError(
            f"the attestation cannot be written: {error}; kvfix.runtime_dir names another place"
        ) from error
    _forget_at_exit(file, attestation.pid)
    return file


def live(folder: Path) -> list[dict[str, Any]]:
    """Entries of processes that still run on this host; entries of ended ones are removed."""
    return sorted(_live(folder), key=lambda entry: (entry["job"], entry["rank"], entry["pid"]))


def process_start(pid: int) -> int | None:
    """When the process started, in clock ticks since boot, or None when there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def distribution_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _live(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.json")):
        try:
            entry = json.loads(file.read_text())
        except (OSError, ValueError):
            continue  # it went, or is not ours
        if entry.get("format") != FORMAT or entry["host"] != socket.gethostname():
            continue  # a shared folder: only its own host can tell whether the process lives
        if process_start(entry["pid"]) == entry["process_start"]:
            yield entry
        else:
            file.unlink(missing_ok=True)


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
