"""The files of the repository."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.layers import ROOT

GENERATED = {".venv", "build", "dist", "__pycache__"}


def tracked_files() -> Iterator[Path]:
    """Files that git tracks; in an unpacked archive, every file that is not generated."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not GENERATED & set(path.relative_to(ROOT).parts)]
    yield from (path for path in paths if path.is_file())
