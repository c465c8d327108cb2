"""Standard streams as callers leave them: closed, full, left by their reader, or without our letters."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests import fresh
from trtllm_kvfix import cli
from trtllm_kvfix.errors import EXIT_INTERRUPTED, SettingsError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "trtllm_kvfix"]
VERIFY = ("verify", "--iterations", "2", "--case", "offsets-v1")
DEMO = ("demo", "--fix", "computed-blocks=off")
REPLAY = ("replay", "--generate", "small")


def forked(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return fresh.run([*COMMAND, *arguments], env=os.environ | environ)


def started(*arguments: str, closed: tuple[int, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    def close() -> None:
        for number in closed:
            os.close(number)

    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        encoding="latin-1",
        check=False,
        preexec_fn=close if closed else None,
        env=os.environ | environ,
    )


@pytest.mark.parametrize("arguments", [("-h",), ("--version",), VERIFY, DEMO, REPLAY], ids=" ".join)
def test_closed_output_is_no_failure(arguments: tuple[str, ...]) -> None:
    done = started(*arguments, closed=(1,))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert started(*arguments, closed=(0, 1, 2)).returncode == 0


@pytest.mark.parametrize("closed", [(0, 1), (0, 2), (0, 1, 2), (1,)], ids=str)
def test_upstream_may_greet_where_streams_are_closed(closed: tuple[int, ...], tmp_path: Path) -> None:
    """doctor keeps the greeting, which may be of C++, out of its report."""
    (tmp_path / "tensorrt_llm.py").write_text("import os; os.write(1, b'hello')\n")
    done = started("doctor", "--json", closed=closed, PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))
    assert "Traceback" not in done.stderr
    assert ("hello" in done.stdout, "hello" in done.stderr) == (False, 2 not in closed)


def test_a_command_that_runs_finds_its_output_as_closed_as_we_did() -> None:
    says = "import os, sys; sys.exit(7 if sys.stdout is None else 8)"
    assert started("run", "--", sys.executable, "-c", says, closed=(1,)).returncode == 7


def test_a_trace_from_a_closed_standard_input_is_refused() -> None:
    done = started("replay", "-", closed=(0,))
    assert done.returncode == SettingsError.exit_code
    assert done.stderr == "Error: trace standard input cannot be read: it is closed\n"


@pytest.mark.parametrize("arguments", [("-h",), VERIFY, DEMO, REPLAY, (*DEMO, "--json")], ids=" ".join)
def test_a_reader_that_goes_is_no_hazard(arguments: tuple[str, ...]) -> None:
    """1 would mean one."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_help_on_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "-h"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == SettingsError.exit_code
    assert done.stderr == "Error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    "arguments", [("-h",), VERIFY, ("nosuch",), ("verify", "--nosuch"), ("run", "--", "no-such-program")], ids=" ".join
)
def test_a_full_disk_behind_output_and_errors_is_no_hazard(arguments: tuple[str, ...]) -> None:
    """`> log 2>&1`; 1 would mean a hazard."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=full, check=False)
    assert done.returncode == SettingsError.exit_code


@pytest.mark.parametrize(
    "arguments", [("nosuch",), ("verify", "--nosuch"), ("run", "--", "no-such-program")], ids=" ".join
)
def test_bad_usage_that_nobody_reads_is_no_hazard(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == SettingsError.exit_code


@pytest.mark.parametrize("arguments", [("-h",), DEMO], ids=" ".join)
def test_a_limit_of_file_sizes_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """As a quota, and unlike a full disk, it is another error than ENOSPC."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=out, stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limit
        )
    assert done.returncode == SettingsError.exit_code
    assert done.stderr == "Error: standard output cannot be written: File too large\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_encoding_lacks_are_question_marks(encoding: str) -> None:
    done = started(*DEMO, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert "poems to whoever cannot s?" in done.stdout


def under_test(monkeypatch: pytest.MonkeyPatch, body: Callable[[], None]) -> None:
    monkeypatch.setattr(sys.modules[__name__], "command_under_test", click.command()(body), raising=False)
    monkeypatch.setitem(cli.COMMANDS, "under-test", f"{__name__}:command_under_test")


def test_ctrl_c_before_a_command_has_anything_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while modules are imported or a device is opened. 1 would mean a hazard."""

    def body() -> None:
        raise KeyboardInterrupt

    under_test(monkeypatch, body)
    result = CliRunner().invoke(cli.main, ["under-test"])
    assert (result.exit_code, result.stderr) == (EXIT_INTERRUPTED, "Interrupted.\n")


def test_ctrl_c_while_the_command_line_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(COMMAND, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "Interrupted.\n")
    assert 'trtllm-kvfix = "trtllm_kvfix.__main__:main"' in (ROOT / "pyproject.toml").read_text(), "the same way"


@pytest.mark.parametrize("arguments", [VERIFY, DEMO, (*REPLAY, "--compare")], ids=" ".join)
def test_a_narrow_terminal_loses_nothing(arguments: tuple[str, ...]) -> None:
    narrow, wide = (forked(*arguments, COLUMNS=each).stdout.splitlines() for each in ("40", "80"))
    assert [_without_times(line) for line in narrow] == [_without_times(line) for line in wide]


def _without_times(line: str) -> list[str]:
    return [word for word in line.split() if not word.replace(".", "").isdigit()]
