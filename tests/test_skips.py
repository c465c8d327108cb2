"""Where CI is set, a skip that nobody has allowed is a failure."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.skips import ALLOWED

ROOT = Path(__file__).parents[1]
WITHOUT_CI = {name: value for name, value in os.environ.items() if name != "CI"}
WITH_CI = {**WITHOUT_CI, "CI": "true"}
ALLOWED_FILE, SAYS = "watch/tests/test_frames_of_python.py", "Python 3.99 is not in the path"
IN_A_TEST = 'import pytest\ndef test_it():\n    pytest.skip("{}")'
IN_A_FIXTURE = (
    'import pytest\n@pytest.fixture(scope="session")\ndef made():\n    pytest.skip("{}")\ndef test_it(made): ...'
)
BY_A_MARK = 'import pytest\n@pytest.mark.skipif(True, reason="{}")\ndef test_it(): ...'
OF_A_MODULE = 'import pytest\npytest.skip("{}", allow_module_level=True)\ndef test_it(): ...'
WITHOUT_A_MODULE = 'import pytest\npytest.importorskip("kvfix_absent", reason="{}")\ndef test_it(): ...'
WAYS = (IN_A_TEST, IN_A_FIXTURE, BY_A_MARK, OF_A_MODULE, WITHOUT_A_MODULE)


def run(folder: Path, file: str, text: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A suite of its own, of one file, with this repository's list."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    (folder / "pytest.ini").touch()  # makes it the folder from which tests are named
    (folder / "test_other.py").write_text("def test_other(): ...")
    command = (sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", folder)
    more = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env={**environ, **more}, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", WAYS)
def test_a_skip_that_nobody_allowed_fails_under_ci_alone(way: str, tmp_path: Path) -> None:
    done = run(tmp_path, ALLOWED_FILE, way.format("libhostrace.so is missing"), WITH_CI)
    assert done.returncode != 0
    assert "was skipped where CI is set: libhostrace.so is missing" in done.stdout
    assert run(tmp_path, ALLOWED_FILE, way.format("libhostrace.so is missing"), WITHOUT_CI).returncode == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_skip_on_the_list_passes_and_is_said(way: str, tmp_path: Path) -> None:
    done = run(tmp_path, ALLOWED_FILE, way.format(SAYS), WITH_CI)
    assert done.returncode == 0, done.stdout
    assert f"[1] {ALLOWED_FILE}: {SAYS} (the one that runs the tests is always read)" in done.stdout


def test_a_reason_counts_in_its_own_file_only(tmp_path: Path) -> None:
    assert run(tmp_path, "watch/tests/test_marks.py", IN_A_TEST.format(SAYS), WITH_CI).returncode == 1


def test_every_suite_has_the_plugin(pytestconfig: pytest.Config) -> None:
    """From the conftest that tests/ and integration/ share."""
    assert pytestconfig.pluginmanager.has_plugin("tests.skips")
    assert (ROOT / "conftest.py").is_file()


@pytest.mark.parametrize("allowed", ALLOWED)
def test_the_list_names_files_that_there_are(allowed: tuple[str, str, str]) -> None:
    assert any(ROOT.glob(allowed[0]))
