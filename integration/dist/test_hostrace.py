"""hostrace as somebody gets it: its wheel alone, in clean environments, with the lowest and the newest dependencies.

A program is watched there on the driver that the tests of hostrace make up.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from hostrace import __version__
from hostrace.launch import LIBRARY, library
from integration.dist.environments import ROOT, Built, clean_environment, uv
from watch.tests.conftest import driver

__all__ = ["driver"]

RACY_TEST = """
from watch.gpu.driver import Driver
from watch.tests.programs import races_and_fails

def test_races():
    races_and_fails(Driver())

def test_is_quiet():
    Driver()
"""


@pytest.fixture(scope="module", params=["lowest-direct", "highest"])
def programs(request: pytest.FixtureRequest, built_hostrace: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which the wheel is, and pytest, for which it has a plugin."""
    folder = tmp_path_factory.mktemp(request.param)
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    how = ("--quiet", "--python", folder / "venv" / "bin" / "python", "--resolution", request.param)
    uv("pip", "install", *how, built_hostrace.wheel, "pytest>=8.2")
    return folder / "venv" / "bin"


@pytest.fixture
def environ(programs: Path, driver: Path, tmp_path: Path) -> Mapping[str, str]:
    """Of the checkout, only the programs to watch can be imported."""
    for name in ("gpu", "tests"):
        shutil.copytree(ROOT / "watch" / name, tmp_path / "watch" / name)
    more = {"LD_LIBRARY_PATH": str(driver), "HOSTRACE_CUPTI": str(driver / "libcuda.so.1"), "PYTHONPATH": str(tmp_path)}
    return clean_environment(programs, **more)


def run(*command: str | Path, environ: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environ)


def test_a_race_is_found_where_nothing_else_is_installed(
    programs: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    racy = (programs / "python", "-m", "watch.tests.programs", "races_and_fails")
    done = run(programs / "hostrace", "--json", "races.json", "--", *racy, environ=environ, folder=tmp_path)
    (race,) = json.loads((tmp_path / "races.json").read_text())["races"]
    assert (done.returncode, race["touch"], race["use"]) == (3, "write", "copy"), done.stderr
    assert any("programs.py" in frame["file"] for frame in race["touch_stack"]["python"])
    alone = run(programs / "python", "-c", "import trtllm_kvfix", environ=environ, folder=tmp_path)
    assert "No module named 'trtllm_kvfix'" in alone.stderr


def test_pytest_finds_the_plugin(programs: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "test_races.py").write_text(RACY_TEST)
    command = (programs / "python", "-m", "pytest", "-W", "ignore", "test_races.py")
    plain = run(*command, environ=environ, folder=tmp_path)
    assert (plain.returncode, "2 passed" in plain.stdout) == (0, True), plain.stdout
    watched = run(*command, "--hostrace", environ=environ, folder=tmp_path)
    assert (watched.returncode, "1 failed, 1 passed" in watched.stdout) == (1, True), watched.stdout + watched.stderr


def test_without_a_driver_it_says_so(programs: Path, tmp_path: Path) -> None:
    nowhere = clean_environment(programs, LD_LIBRARY_PATH=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    done = run(programs / "hostrace", "--", "true", environ=nowhere, folder=tmp_path)
    assert (done.returncode, done.stderr.startswith("Error: "), "Traceback" in done.stderr) == (2, True, False)


def test_one_wheel_serves_every_python(built_hostrace: Built) -> None:
    name, version, *tags = built_hostrace.wheel.stem.split("-")
    assert (name, version, tags[:2]) == ("hostrace", __version__, ["py3", "none"])


def test_wheel_holds_the_package_its_library_and_the_licence(built_hostrace: Built) -> None:
    names = zipfile.ZipFile(built_hostrace.wheel).namelist()
    folder = f"hostrace-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"hostrace", folder}
    source = {f"hostrace/{path.name}" for path in (ROOT / "watch/src/hostrace").iterdir() if path.is_file()}
    assert {name for name in names if name.startswith("hostrace/")} == {*source, f"hostrace/{LIBRARY}"}
    assert f"{folder}/licenses/LICENSE" in names


def test_sdist_has_what_builds_it_and_its_page(built_hostrace: Built) -> None:
    with tarfile.open(built_hostrace.sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.partition("/")[0] for name in files if "/" in name} == {"cpp", "docs", "src"}
    assert [name for name in files if name.startswith("cpp/tests/")] == []
    assert {"LICENSE", "README.md", "CMakeLists.txt", "docs/hostrace.md"} <= files


def test_library_is_reproducible(built_hostrace: Built) -> None:
    """The same source in another folder: what `make build` has made and what is in the wheel are equal bit for bit."""
    inside = zipfile.ZipFile(built_hostrace.wheel).read(f"hostrace/{LIBRARY}")
    assert inside == library().read_bytes()
