"""The persistent hook: one line in one environment, there or not there, and what it costs."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.overlay.upstream_double import ROOT, environment, python
from trtllm_kvfix import cli
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay import hook_file

START_UP_US_MAX = 3000  # it is usually 500, and a machine may be slow
MEASURED = 15
SHOW = "from tensorrt_llm._torch.pyexecutor import py_executor; print(py_executor.record())"


@pytest.fixture
def site_dir(small: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that new interpreters treat as their site-packages, and `enable` as its own."""
    folder = small / "site"
    folder.mkdir()
    (small / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(folder)!r})\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"purelib": str(folder)}[name])
    for name, value in environment(small).items():
        monkeypatch.setenv(name, value)
    return folder


def test_enable_and_disable_write_and_remove_one_line(site_dir: Path) -> None:
    def invoke(command: str) -> str:
        result = CliRunner().invoke(cli.main, [command])
        assert result.exit_code == 0, result.output
        return result.output.partition(":")[0]

    file = site_dir / "trtllm_kvfix_hook.pth"
    assert invoke("disable") == "was not installed"
    assert invoke("enable") == "installed"
    assert file.read_text() == hook_file.LINE and hook_file.LINE.count("\n") == 1
    assert invoke("enable") == "was installed already"
    assert invoke("disable") == "removed"
    assert not file.exists()


def test_hook_in_a_folder_that_python_does_not_read_is_an_error(site_dir: Path) -> None:
    (site_dir.parent / "sitecustomize.py").unlink()
    result = CliRunner().invoke(cli.main, ["enable"])
    assert result.exit_code == 1
    assert "does not read" in result.stderr
    assert not hook_file.hook_file().exists()


def test_hook_that_outlives_the_package_is_silent(site_dir: Path, tmp_path: Path) -> None:
    """After `pip uninstall` the file stays and the package is gone."""
    hook_file.write(hook_file.hook_file())
    code = f"import site; site.addsitedir({str(site_dir)!r}); print('started')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("started\n", "")


def test_folder_that_cannot_be_written_is_an_error_that_names_the_other_way(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory; `trtllm-kvfix run -- COMMAND` needs no hook"):
        hook_file.write(hook_file.hook_file(tmp_path / "absent"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError, match="cannot be removed: Is a directory"):
        hook_file.remove(tmp_path / "folder")


def test_every_interpreter_has_the_fixes_while_the_hook_is_there(small: Path, site_dir: Path) -> None:
    hook_file.write(hook_file.hook_file(site_dir))
    code = "import small_fixes\n" + SHOW
    assert python(small, code).stdout.strip() == "['ours', 'upstream', 'ours']"
    assert python(small, code, TRTLLM_KVFIX_ENABLED="0").stdout.strip() == ""  # not a truth value: refused
    assert python(small, code, TRTLLM_KVFIX_ENABLED="false").stdout.strip() == "['upstream', 'upstream']"
    hook_file.remove(hook_file.hook_file(site_dir))
    assert python(small, code).stdout.strip() == "['upstream', 'upstream']"


def test_hook_imports_nothing_but_its_own_three_modules(tmp_path: Path) -> None:
    code = f"import sys; before = set(sys.modules)\n{hook_file.LINE}print(sorted(set(sys.modules) - before))"
    expected = ["trtllm_kvfix", "trtllm_kvfix.overlay", "trtllm_kvfix.overlay.import_hook"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == str(expected)


def test_hook_costs_an_interpreter_next_to_nothing(tmp_path: Path) -> None:
    """The best of some fresh interpreters, with the bytecode that an installation has."""
    code = (
        f"import time; begin = time.process_time_ns()\n{hook_file.LINE}print((time.process_time_ns() - begin) // 1000)"
    )
    variables = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    cost_us = [
        int(subprocess.check_output([sys.executable, "-S", "-c", code], cwd=tmp_path, env=variables))
        for _ in range(MEASURED)
    ]
    assert min(cost_us[1:]) < START_UP_US_MAX, cost_us


def test_hook_file_is_in_this_environment_by_default() -> None:
    assert hook_file.hook_file().parent == Path(sysconfig.get_path("purelib"))
    assert os.access(hook_file.hook_file().parent, os.R_OK)
