"""The package as a whole: cheap to import, one name for each thing, examples that run."""

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import hostrace
import trtllm_kvfix
from trtllm_kvfix import errors, native

ROOT = Path(__file__).resolve().parent.parent
IMPORT_US_MAX = 50_000
WAIT_S = 60


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT)


def test_import_loads_nothing_but_the_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import trtllm_kvfix;"
        "print({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    assert run("-c", code).stdout.strip() == "{'trtllm_kvfix'}"


def test_errors_load_the_extension_only_when_asked_for_its_exceptions() -> None:
    code = (
        "import sys; from trtllm_kvfix import errors; assert 'trtllm_kvfix.native' not in sys.modules;"
        "errors.OutOfBlocks; assert 'trtllm_kvfix.native' in sys.modules"
    )
    run("-c", code)


def test_import_is_cheap() -> None:
    code = "import time; a = time.process_time_ns(); import trtllm_kvfix; print((time.process_time_ns() - a) // 1000)"
    assert min(int(run("-c", code).stdout) for _ in range(3)) < IMPORT_US_MAX


def test_exceptions_of_the_extension_are_found_in_errors() -> None:
    for name in ("BlockInFlight", "InvariantViolation", "OutOfBlocks", "UnknownRequest"):
        assert getattr(errors, name) is getattr(native, name)
    with pytest.raises(AttributeError, match="NoSuchError"):
        _ = errors.NoSuchError


def test_native_names_all_of_the_extension() -> None:
    public = {name for name in dir(sys.modules["trtllm_kvfix._core"]) if not name.startswith("_")}
    assert public == set(native.__all__)


def test_installed_version_is_the_one_in_the_source() -> None:
    assert version("trtllm-kvfix") == trtllm_kvfix.__version__


def test_neither_torch_nor_tensorrt_llm_is_required() -> None:
    required = [line for line in requires("trtllm-kvfix") or [] if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("torch", "tensorrt"))]


def test_makefile_installs_the_build_requirements_of_pyproject() -> None:
    declared = re.search(r"^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    installed = re.search(r"^BUILD_REQUIRES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert installed is not None
    assert re.findall(r'"(.*?)"', declared[1]) == re.findall(r"'(.*?)'", installed[1])


def test_hostrace_is_an_extra_and_builds_with_the_same_requirements() -> None:
    declared = [re.findall(r'"(.*?)"', (ROOT / file).read_text().partition("requires = ")[2].partition("]")[0])
                for file in ("pyproject.toml", "watch/pyproject.toml")]  # fmt: skip
    assert set(declared[1]) <= set(declared[0])
    assert [line for line in requires("trtllm-kvfix") or [] if line.startswith("hostrace")] == [
        'hostrace>=0.1; extra == "watch"'
    ]
    assert version("hostrace") == hostrace.__version__


def test_make_help_lists_every_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  ([a-z0-9-]+) ", shown, re.MULTILINE) == targets[1].split()


def halves_of_ci(folder: Path, python: str, native: str) -> list[str | Path]:
    """The command of `make ci` with recipes of these in the place of its halves."""
    makefile = (ROOT / "Makefile").read_text()
    how = re.search(r"^half = .*\n", makefile, re.MULTILINE)
    recipe = re.search(r"^ci:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert how is not None and recipe is not None
    (folder / "build").mkdir()
    halves = f"ci-python:\n\t@{python}\nci-native:\n\t@{native}\n"
    (folder / "Makefile").write_text(f"{how[0]}ci:\n{recipe[1]}{halves}")
    return ["make", "--no-print-directory", "-C", folder, "ci"]


@pytest.mark.parametrize("python", ["echo Python; true", "echo Python; false"])
@pytest.mark.parametrize("native", ["echo C++; true", "echo C++; false"])
def test_ci_fails_if_either_half_does_and_ends_with_it(python: str, native: str, tmp_path: Path) -> None:
    done = subprocess.run(halves_of_ci(tmp_path, python, native), capture_output=True, text=True, check=False)
    failed = [half for half, recipe in (("C++", native), ("Python", python)) if recipe.endswith("false")]
    assert (done.returncode == 0) == (failed == [])
    end = done.stdout.partition("Its last lines:")[2]
    assert [half for half in ("C++", "Python") if half in end] == failed


# A job that runs in the background ignores ctrl-C, and so would what it starts.
HEEDS_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""

# A handler of Python's would run only before a pause that has begun, or after it.
WAITS = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write({descriptor}, b"begun\\n")
signal.pause()
"""


def test_ctrl_c_ends_both_halves_of_ci(tmp_path: Path) -> None:
    """Whatever lives on holds the pipe open."""
    reading, writing = os.pipe()
    (tmp_path / "waits.py").write_text(WAITS.format(descriptor=writing))
    waits = f"{sys.executable} waits.py"
    ci = subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, *halves_of_ci(tmp_path, waits, waits)],
        pass_fds=[writing],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as pipe:
        try:
            assert [pipe.readline(), pipe.readline()] == ["begun\n", "begun\n"]
            os.killpg(ci.pid, signal.SIGINT)
            assert select.select([pipe], [], [], WAIT_S)[0], "a half goes on"
            assert pipe.read() == ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ci.pid, signal.SIGKILL)
            ci.wait()
