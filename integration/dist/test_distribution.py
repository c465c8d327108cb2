"""The sdist and the wheel as somebody gets them: in clean environments, with the lowest and the newest dependencies.

Needs uv and the build tools of this package: make test-dist
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import trtllm_kvfix
from integration.dist.environments import CONTAINER, ROOT, Built, clean_environment, uv
from trtllm_kvfix.native import BlockManager

# A command, its exit code, and a part of what it prints where TensorRT-LLM is not installed.
COMMANDS = [
    ("--help", 0, "Commands:"),
    ("doctor", 1, "TensorRT-LLM is not installed"),
    ("verify --device cpu --iterations 10", 0, "Proven"),
    ("demo --device cpu", 0, "fix"),
    ("replay --generate small --compare", 0, "reused"),
]


@pytest.fixture(scope="module", params=["lowest-direct", "highest"])
def python(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is, with the dependencies that pyproject.toml allows."""
    folder = tmp_path_factory.mktemp(request.param)
    chosen = folder / "chosen.txt"
    resolution = ("--resolution", request.param, "--python-version", "{}.{}".format(*sys.version_info))
    uv("pip", "compile", "--quiet", *resolution, "--output-file", chosen, ROOT / "pyproject.toml")
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    interpreter = folder / "venv" / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", interpreter, "--constraints", chosen, built.wheel)
    if request.param == "lowest-direct":
        installed = dict(
            line.split("==") for line in uv("pip", "freeze", "--python", interpreter).splitlines() if "==" in line
        )
        assert {name: Version(installed[name]) for name in lowest()} == lowest()
    return interpreter


def lowest() -> dict[str, Version]:
    """The package itself says that it serves these versions."""
    required = [Requirement(line) for line in distribution("trtllm-kvfix").requires or [] if "extra ==" not in line]
    return {each.name: Version(next(iter(each.specifier)).version) for each in required}


def test_sdist_has_nothing_that_wants_a_checkout(built: Built) -> None:
    """Its wheel is built by the fixture. The Makefile and CI call what is not here, and tests call one another."""
    with tarfile.open(built.sdist) as archive:
        files = [name.partition("/")[2] for name in archive.getnames()]
    folders = {name.partition("/")[0] for name in files if "/" in name}
    assert folders == {"cmake", "cpp", "docs", "examples", "licenses", "tools", "trtllm_kvfix"}
    assert {name for name in files if name.startswith("tools/")} == {"tools/install_nvcc.sh", "tools/wheels.sh"}
    assert [name for name in files if name.startswith(("cpp/tests/", "cpp/fuzz/")) or name == "Makefile"] == []


@pytest.mark.parametrize(("command", "code", "part"), COMMANDS, ids=[command.split()[0] for command, _, _ in COMMANDS])
def test_command_runs_from_the_wheel(python: Path, tmp_path: Path, command: str, code: int, part: str) -> None:
    program = python.parent / "trtllm-kvfix"
    done = subprocess.run(
        [program, *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean_environment(python.parent),
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stdout + done.stderr
    assert part in done.stdout


def test_watch_says_how_to_get_it_where_only_this_wheel_is(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [python.parent / "trtllm-kvfix", "watch", "--hold", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean_environment(python.parent),
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "pip install hostrace" in done.stderr


@pytest.mark.parametrize("pip", [True, False])
def test_image_installs_the_wheel_and_nothing_else_changes(built: Built, tmp_path: Path, pip: bool) -> None:
    """install.sh in an environment that has a version of rich which is too old for us: what runs there is not touched.
    NVIDIA's image has pip, Dynamo's has uv alone."""
    uv("venv", "--quiet", *(["--seed"] if pip else []), "--python", sys.executable, tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    command = [CONTAINER / "install.sh", built.wheel.parent]
    environ = clean_environment(programs)
    first = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (first.returncode, first.stdout.splitlines()[-1]) == (
        0,
        f"trtllm-kvfix, version {trtllm_kvfix.__version__}",
    ), first.stderr
    uv("pip", "install", "--quiet", "--python", programs / "python", "rich==13.0.0")
    second = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (second.returncode, "rich==13.0.0" in second.stderr) == (1, True), second.stderr


def test_image_without_a_wheel_says_so(tmp_path: Path) -> None:
    done = subprocess.run([CONTAINER / "install.sh", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, "has no wheel" in done.stderr) == (2, True)


def test_wheel_holds_licences_and_no_tests(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    folder = f"trtllm_kvfix-{trtllm_kvfix.__version__}.dist-info/licenses/"
    assert sorted(name.removeprefix(folder) for name in names if name.startswith(folder)) == [
        "LICENSE",
        "licenses/nanobind.txt",
        "licenses/robin-map.txt",
    ]
    assert {name.split("/")[0] for name in names} == {"trtllm_kvfix", folder.partition("/")[0]}


def test_extension_is_reproducible(built: Built) -> None:
    """The same source in another folder: what `make build` has made and what is in the wheel are equal bit for bit."""
    module = sys.modules[BlockManager.__module__].__file__
    assert module is not None
    archive = zipfile.ZipFile(built.wheel)
    inside = {Path(name).name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}
    here = {path.name: path.read_bytes() for path in Path(module).parent.glob("*.so")}
    assert inside.keys() == here.keys()
    assert [name for name in inside if inside[name] != here[name]] == []


def test_metadata_is_complete(built: Built) -> None:
    archive = zipfile.ZipFile(built.wheel)
    name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
    headers = archive.read(name).decode().partition("\n\n")[0]
    given = set(re.findall(r"^([\w-]+): ", headers, re.MULTILINE))
    assert {
        "Author",
        "Keywords",
        "License-Expression",
        "License-File",
        "Project-URL",
        "Requires-Python",
        "Summary",
    } <= given
