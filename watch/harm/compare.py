"""Whether hostrace leaves a program as it is: the program runs plain and watched, several times each, and what can be
seen of it from outside is compared. How a watched run ended has to be one of the ways in which a plain run did."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 120.0
SHOWN = 2000


@dataclass(frozen=True)
class Outcome:
    status: int | None  # negative: the signal that ended it; None: it did not end
    out: bytes
    err: bytes
    files: tuple[tuple[str, str], ...]  # names and digests of what it left in its folder

    def __str__(self) -> str:
        text = f"{self.out.decode(errors='replace')}{self.err.decode(errors='replace')}"[:SHOWN]
        return f"status {self.status}, files {dict(self.files)}\n{text}"


def outcome(command: Sequence[str], environ: Mapping[str, str], limit_s: float = LIMIT_S) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="harm-") as folder:
        try:
            done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as stuck:
            return Outcome(None, stuck.stdout or b"", stuck.stderr or b"", ())
        return Outcome(done.returncode, done.stdout, done.stderr, tuple(_digests(Path(folder))))


def harm(plain: Iterable[Outcome], watched: Iterable[Outcome]) -> list[Outcome]:
    """The watched runs that ended as no plain run did."""
    usual = set(plain)
    return [each for each in watched if each not in usual]


def _digests(folder: Path) -> Iterable[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()
