"""hostrace on a driver that is made up: compiled once, and loaded in the place of libcuda and libcupti."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hostrace.errors import HostraceError
from hostrace.launch import library

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
WATCH = (sys.executable, "-m", "hostrace")


@dataclass
class Outcome:
    status: int
    out: str
    said: str
    report: dict[str, Any]

    @property
    def races(self) -> list[dict[str, Any]]:
        races: list[dict[str, Any]] = self.report["races"]
        return races

    def times(self, grade: str = "races") -> int:
        return sum(race["times"] for race in self.report[grade])


Watch = Callable[..., Outcome]


def tells_raw_calls() -> bool:
    """Whether Linux hands over calls into the kernel that go past the C library: from 5.11 on, on x86-64."""
    dispatch, off = 59, 0
    return int(ctypes.CDLL(None).prctl(dispatch, off, 0, 0, 0)) == 0


def compiler() -> str:
    """The test is skipped where there is none."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler to make the driver with")
    return found


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the made-up driver."""
    if platform.machine() != "x86_64":
        pytest.skip("needs x86-64")
    try:
        library()
    except HostraceError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_driver.cc")
    flags = ("-std=c++20", "-I", ROOT / "watch/cpp", "-shared", "-fPIC")
    subprocess.run([compiler(), *flags, "-o", folder / "libcuda.so.1", source, "-lpthread"], check=True)
    return folder


@pytest.fixture
def environ(driver: Path) -> dict[str, str]:
    places = [str(driver), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'watch/src'}",
        "LD_LIBRARY_PATH": ":".join(places),
        "HOSTRACE_GATES": "1",
        "HOSTRACE_CUPTI": str(driver / "libcuda.so.1"),
    }


@pytest.fixture
def watch(environ: dict[str, str], tmp_path: Path) -> Watch:
    def run(*command: str, options: tuple[str, ...] = (), **more: str) -> Outcome:
        file = tmp_path / "report.json"
        file.unlink(missing_ok=True)
        done = subprocess.run(
            [*WATCH, "--json", str(file), *options, "--", sys.executable, "-m", *command],
            env={**environ, **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        report = json.loads(file.read_text()) if file.exists() else {}
        return Outcome(done.returncode, done.stdout, done.stderr, report)

    return run
