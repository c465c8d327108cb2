"""The frames of every interpreter that is on this machine, read as the library reads them in a signal handler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_suffix("").with_name("frames_of_python.py")
KNOWN = ("3.10", "3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler to make the reader with")
    made = tmp_path_factory.mktemp("reader") / "reader.so"
    sources = (Path(__file__).with_name("frames_of_python.cc"), ROOT / "watch/cpp/hostrace/python.cc")
    flags = ("-std=c++20", "-I", ROOT / "watch/cpp", "-shared", "-fPIC")
    subprocess.run([compiler, *flags, "-o", made, *sources, "-ldl"], check=True)
    return made


def interpreter(version: str) -> str | None:
    """The interpreter of that version, if it is in the path and starts."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = sys.executable if version == ours else shutil.which(f"python{version}")
    if command is None or subprocess.run([command, "-c", ""], capture_output=True, check=False).returncode != 0:
        return None
    return command


@pytest.mark.parametrize("version", KNOWN)
def test_every_line_is_the_interpreters_own(reader: Path, version: str) -> None:
    command = interpreter(version)
    if command is None:
        pytest.skip(f"Python {version} is not in the path")
    done = subprocess.run([command, PROGRAM, reader], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "as the interpreter says", done.stderr
