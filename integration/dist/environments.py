"""Environments that have nothing of this checkout, and the programs that make them."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CONTAINER = ROOT / "examples" / "container"


class Built(NamedTuple):
    sdist: Path
    wheel: Path


def uv(*arguments: str | Path) -> str:
    program = shutil.which("uv")
    if program is None:
        pytest.skip("needs uv: pip install uv")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def clean_environment(programs: Path, **more: str) -> Mapping[str, str]:
    """An environment without anything that leads to this checkout; `programs` come first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRTLLM_KVFIX_"))}
    return kept | {"PATH": f"{programs}:{os.environ['PATH']}", **more}
