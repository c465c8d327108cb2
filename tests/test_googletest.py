"""cmake/googletest.cmake: what the C++ tests do on a machine where no GoogleTest is installed."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
include({ROOT.as_posix()}/cmake/googletest.cmake)
if(TARGET GTest::gtest_main)
  message(NOTICE "found")
endif()
"""
LIBRARY = """
add_library(gtest_main INTERFACE)
add_library(GTest::gtest_main ALIAS gtest_main)
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive that is fetched: a folder with a CMake project, as GoogleTest's own is."""
    source = tmp_path / "googletest-0"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(LIBRARY)
    file = tmp_path / "archive.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(source, "googletest-0")
    return file


def configure(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "CMakeLists.txt").write_text(PROJECT)
    command = ["cmake", "-S", str(folder), "-B", str(folder / "build"), "-G", "Ninja", "--log-level=NOTICE"]
    command += ["-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON", f"-DKVFIX_GTEST_URL={url}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_archive_with_the_pinned_hash_is_used_and_fetched_once(tmp_path: Path, archive: Path) -> None:
    pin = f"-DKVFIX_GTEST_SHA256={hashlib.sha256(archive.read_bytes()).hexdigest()}"
    done = configure(tmp_path, archive.as_uri(), pin)
    assert (done.returncode, "found" in done.stderr) == (0, True), done.stderr
    archive.unlink()
    again = configure(tmp_path, archive.as_uri(), pin)
    assert (again.returncode, "found" in again.stderr, "fetching" in again.stderr) == (0, True, False), again.stderr


def test_archive_with_another_hash_is_refused(tmp_path: Path, archive: Path) -> None:
    done = configure(tmp_path, archive.as_uri())
    assert done.returncode == 1
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in done.stderr
    assert not (tmp_path / "build" / "googletest.tar.gz").exists()


def test_without_it_configuring_fails_and_says_what_to_install_or_to_type(tmp_path: Path) -> None:
    url = (tmp_path / "nowhere.tar.gz").as_uri()
    done = configure(tmp_path, url)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert f"cannot be fetched from {url}" in said
    assert "apt install libgtest-dev" in said and "make test WITHOUT_CPP=1" in said


def planned(*settings: str) -> str:
    """What `make test` would run, for somebody who types it."""
    command = ["make", "--no-print-directory", "-n", "test", *settings]
    typed = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=typed).stdout


def test_make_test_looks_for_it_before_it_compiles() -> None:
    plan = planned()
    assert plan.index("cmake -S . -B build/tests") < plan.index("cmake --build")
    assert plan.index("cmake -S . -B build/tests") < plan.index(" -m pytest")
    assert "ctest --test-dir build/tests" in plan and "did not run" not in plan


def test_who_wants_no_cpp_tests_says_so_and_is_told() -> None:
    plan = planned("WITHOUT_CPP=1")
    assert " -m pytest" in plan and "build/tests" not in plan
    assert plan.rstrip().endswith('echo "The C++ tests did not run: WITHOUT_CPP is set."')
