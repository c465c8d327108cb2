"""A start that is refused ends in one line and the error's exit code, wherever upstream's code was in between."""

import os
import sys
from pathlib import Path
from types import TracebackType

import pytest

from tests import fresh
from tests.overlay.test_stand_in import below_run
from tests.overlay.upstream_double import environment
from tests.standin.fixture import STANDIN
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.overlay import server_end
from trtllm_kvfix.overlay.hook_loss import BOOTSTRAP


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Errors that reach the hook that was there before ours."""
    seen: list[BaseException] = []

    def keep(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        seen.append(error)

    monkeypatch.setattr(sys, "excepthook", keep)
    server_end.show_our_errors()
    return seen


def test_refused_manager_is_one_line_with_the_usual_cause(tmp_path: Path) -> None:
    done = below_run(tmp_path, "B", config="kvfix: {manager: native}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "error: " in line)
    assert "kvfix.manager: native: this engine's cache is " in line
    assert "Usual cause: KVCacheManagerV2" in line


def test_bad_variable_that_only_the_hook_reads_is_one_line(tmp_path: Path) -> None:
    environ = environment(STANDIN, STANDIN_VARIANT="B", TRTLLM_KVFIX_ENABLED="true", TRTLLM_KVFIX_METRICS_PORT="many")
    environ["PYTHONPATH"] = f"{BOOTSTRAP}{os.pathsep}{environ['PYTHONPATH']}"
    done = fresh.run([sys.executable, "-c", "import tensorrt_llm"], cwd=tmp_path, env=environ)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "TRTLLM_KVFIX_METRICS_PORT" in done.stderr


@pytest.mark.usefixtures("others")
def test_error_of_ours_inside_another_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError("Executor worker returned error") from SettingsError("the port is taken")
    except RuntimeError as error:
        with pytest.raises(SystemExit) as ended:
            sys.excepthook(RuntimeError, error, None)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "[trtllm-kvfix] error: the port is taken\n"


def test_error_while_one_of_ours_was_handled_keeps_its_traceback(others: list[BaseException]) -> None:
    error = ValueError("not ours")
    error.__context__ = KvfixError("handled")
    sys.excepthook(ValueError, error, None)
    assert others == [error]


@pytest.mark.usefixtures("others")
def test_hook_is_installed_once() -> None:
    installed = sys.excepthook
    server_end.show_our_errors()
    assert sys.excepthook is installed
