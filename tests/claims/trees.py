"""What the rows measured, and whether it has changed since: hashes of folders, as git has them at each commit.

bench/results/trees.json keeps the hashes, so that a copy without history can tell as well.
"""

import json
import subprocess
from functools import cache

import yaml

from tests.claims.pages import ROOT
from tests.claims.rows import RESULTS, read

TREES = RESULTS / "trees.json"
MEASURED = RESULTS / "measured.yaml"
Trees = dict[str, dict[str, str]]  # commit, folder, hash


@cache
def measured() -> dict[str, list[str]]:
    folders: dict[str, list[str]] = yaml.safe_load(MEASURED.read_text(encoding="utf-8"))
    return folders


@cache
def kept() -> Trees:
    trees: Trees = json.loads(TREES.read_text(encoding="utf-8"))
    return trees


def needed() -> dict[str, set[str]]:
    """The folders of every commit that a row names."""
    found: dict[str, set[str]] = {}
    for file, folders in measured().items():
        for row in read(file):
            found.setdefault(row["commit"].rstrip("+"), set()).update(folders)
    return found


def of_git(commit: str, folders: set[str]) -> dict[str, str] | None:
    """None: this copy has no such commit. A folder that was not there yet has an empty hash."""
    if _git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    return {folder: _git("rev-parse", "--verify", "--quiet", f"{commit}:{folder}") or "" for folder in sorted(folders)}


def update() -> None:
    """Add what is missing; hashes of commits that this copy lacks stay."""
    trees = kept() if TREES.exists() else {}
    for commit, folders in needed().items():
        trees[commit] = {**trees.get(commit, {}), **(of_git(commit, folders) or {})}
    TREES.write_text(json.dumps(trees, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def changed_since(file: str, commit: str) -> list[str] | None:
    """The folders of a file that differ from those of today. None: nobody can tell here."""
    folders = measured()[file]
    today = of_git("HEAD", set(folders))
    then = kept()[commit.rstrip("+")]
    return None if today is None else [folder for folder in folders if today[folder] != then[folder]]


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
