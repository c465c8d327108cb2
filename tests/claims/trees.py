"""Digests of folders and files at each commit show whether the code that rows measured has changed since.

bench/results/trees.json keeps the digests, so that a copy without history can compare as well. They leave out comments,
docstrings and layout (code.py).
"""

import json
import subprocess
from collections.abc import Iterable
from functools import cache

import yaml

from tests.claims.code import counts, digest, essence
from tests.claims.pages import ROOT
from tests.claims.rows import RESULTS, read

TREES = RESULTS / "trees.json"
MEASURED = RESULTS / "measured.yaml"
Trees = dict[str, dict[str, str | None]]  # commit, folder or file, digest; None: no copy had that commit
Essences = dict[str, bytes]  # of files


@cache
def measured() -> dict[str, list[str]]:
    """The folders and files of each file of rows, each once. An anchor of YAML puts a list into a list."""
    listed = yaml.safe_load(MEASURED.read_text(encoding="utf-8"))
    return {name: list(dict.fromkeys(_flat(paths))) for name, paths in listed.items() if name.endswith(".csv")}


def _flat(paths: object) -> Iterable[str]:
    for each in paths if isinstance(paths, list) else [paths]:
        yield from _flat(each) if isinstance(each, list) else [str(each)]


@cache
def kept() -> Trees:
    trees: Trees = json.loads(TREES.read_text(encoding="utf-8"))
    return trees


def needed() -> dict[str, set[str]]:
    """The folders and files of every commit that a row names."""
    found: dict[str, set[str]] = {}
    for file, paths in measured().items():
        for row in read(file):
            found.setdefault(row["commit"].rstrip("+"), set()).update(paths)
    return found


def of_git(commit: str, paths: Iterable[str]) -> dict[str, str | None] | None:
    """None: this copy has no such commit. What was not there yet has an empty digest."""
    files = files_of_git(commit, paths)
    return None if files is None else {path: digest(_below(files, path)) for path in sorted(paths)}


@cache
def today(path: str) -> str:
    """The digest of the files as they lie here: that needs no history, and sees what is not committed."""
    return digest(files_today([path]))


def files_today(paths: Iterable[str]) -> Essences:
    found = [
        file for path in paths for file in ([ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*"))
    ]
    names = {file.relative_to(ROOT).as_posix(): file for file in found if file.is_file()}
    return {name: essence(name, file.read_bytes()) for name, file in names.items() if counts(name)}


def files_of_git(commit: str, paths: Iterable[str]) -> Essences | None:
    listed = _git("ls-tree", "-r", "-z", commit, "--", *sorted(paths))
    if listed is None:
        return None
    blobs: dict[str, str] = {}
    for line in filter(None, listed.decode().split("\0")):
        facts, name = line.split("\t")
        if counts(name):
            blobs[name] = facts.split()[2]
    contents = _contents(sorted({blob for blob in blobs.values() if blob not in _BLOBS}))
    for name, blob in blobs.items():
        if blob in contents:
            _BLOBS[blob] = essence(name, contents[blob])
    return {name: _BLOBS[blob] for name, blob in blobs.items()}


_BLOBS: dict[str, bytes] = {}  # commits have most files in common


def _contents(blobs: list[str]) -> dict[str, bytes]:
    answer = _git("cat-file", "--batch", given="\n".join(blobs).encode()) or b""
    found: dict[str, bytes] = {}
    for blob in blobs:
        head, _, rest = answer.partition(b"\n")
        size = int(head.split()[2])
        found[blob], answer = rest[:size], rest[size + 1 :]
    return found


def _below(files: Essences, path: str) -> Essences:
    return {name: text for name, text in files.items() if name == path or name.startswith(f"{path}/")}


def update() -> list[str]:
    """Write what rows need. Returns the commits that this copy lacks: what is known of them stays as it is."""
    before = kept() if TREES.exists() else {}
    trees: Trees = {}
    lacking: list[str] = []
    for commit, paths in needed().items():
        found = of_git(commit, paths)
        if found is None:
            lacking.append(commit)
            found = {path: before.get(commit, {}).get(path) for path in paths}
        trees[commit] = found
    TREES.write_text(json.dumps(trees, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return sorted(lacking)


def changed_since(file: str, commit: str) -> list[str]:
    """The folders and files behind a file of rows whose code differs from today's, or cannot be compared."""
    then = kept().get(commit.rstrip("+"), {})
    return [_named(path, then.get(path)) for path in measured()[file] if then.get(path) != today(path)]


def _named(path: str, then: str | None) -> str:
    return path if then is not None else f"{path} (unknown: nobody has that commit)"


def files_changed_since(file: str, commit: str) -> dict[str, str] | None:
    """The files whose code differs, each with `changed`, `new` or `gone`. None: this copy has no such commit."""
    then = files_of_git(commit.rstrip("+"), measured()[file])
    if then is None:
        return None
    now = files_today(measured()[file])
    return {name: _verdict(name, then, now) for name in sorted(then | now) if then.get(name) != now.get(name)}


def _verdict(name: str, then: Essences, now: Essences) -> str:
    return "new" if name not in then else "gone" if name not in now else "changed"


def _git(*arguments: str, given: bytes = b"") -> bytes | None:
    """None: there is no git, no history, or not this commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, input=given, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
