"""The command group: versions, laziness, exit codes, where a command's defaults come from."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trtllm_kvfix import __version__, cli
from trtllm_kvfix.errors import KvfixError, SettingsError


@pytest.fixture
def with_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[click.Command], None]:
    """Add a command of this module to the group."""

    def add(command: click.Command) -> None:
        monkeypatch.setattr(sys.modules[__name__], "command_under_test", command, raising=False)
        monkeypatch.setitem(cli.COMMANDS, "under-test", f"{__name__}:command_under_test")

    return add


def test_version_is_the_package_version() -> None:
    result = CliRunner().invoke(cli.main, ["--version"])
    assert result.output == f"trtllm-kvfix, version {__version__}\n"


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    for name in cli.COMMANDS:
        assert f"  {name} " in result.output


def test_module_and_script_are_the_same_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "trtllm_kvfix", "--version"], capture_output=True, text=True, check=True
    )
    assert __version__ in result.stdout


def test_start_up_loads_no_command_and_no_settings() -> None:
    heavy = [
        "pydantic",
        "yaml",
        "rich",
        "numpy",
        "trtllm_kvfix.native",
        "trtllm_kvfix.tools.doctor.command",
        "trtllm_kvfix.tools.replay",
    ]
    code = f"import sys, trtllm_kvfix.cli; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["--no-such-option"], ["--config", "missing.yaml", "doctor"]]
)
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli.main, arguments).exit_code == 2


def test_bad_setting_exits_with_2_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_REPLAY_BLOCK_HOST", "3")
    result = CliRunner().invoke(cli.main, ["doctor"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: unknown setting TRTLLM_KVFIX_REPLAY_BLOCK_HOST")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("error", "exit_code"), [(KvfixError("a hazard"), 1), (SettingsError("a setting"), 2)])
def test_error_of_a_command_is_one_line_and_its_exit_code(
    with_command: Callable[[click.Command], None], error: KvfixError, exit_code: int
) -> None:
    @click.command()
    def command() -> None:
        raise error

    with_command(command)
    result = CliRunner().invoke(cli.main, ["under-test"])
    assert (result.exit_code, result.stderr) == (exit_code, f"Error: {error}\n")


def test_defect_in_a_command_keeps_its_traceback(with_command: Callable[[click.Command], None]) -> None:
    @click.command()
    def command() -> None:
        raise RuntimeError("a defect")

    with_command(command)
    result = CliRunner().invoke(cli.main, ["under-test"])
    assert isinstance(result.exception, RuntimeError)


def test_replay_options_take_their_defaults_from_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    @click.command()
    @click.option("--blocks-primary", type=int)
    @click.option("--blocks-host", type=int)
    @click.option("--tokens-per-block", type=int)
    def command(**options: int) -> None:
        seen.update(options)

    monkeypatch.setattr(sys.modules[__name__], "replay_under_test", command, raising=False)
    monkeypatch.setitem(cli.COMMANDS, "replay", f"{__name__}:replay_under_test")
    monkeypatch.setenv("TRTLLM_KVFIX_REPLAY_BLOCKS_HOST", "12")
    (tmp_path / "settings.yaml").write_text(
        "kvfix: {replay: {blocks_primary: 11, blocks_host: 0, tokens_per_block: 8}}"
    )

    arguments = ["--config", str(tmp_path / "settings.yaml"), "replay", "--tokens-per-block", "16"]
    assert CliRunner().invoke(cli.main, arguments).exit_code == 0
    assert seen == {"blocks_primary": 11, "blocks_host": 12, "tokens_per_block": 16}


def test_a_full_disk_behind_standard_output_is_no_hazard() -> None:
    """1 would mean a hazard. The case is small enough to stay in Python's buffer until the end."""
    command = [sys.executable, "-m", "trtllm_kvfix", "replay", "--generate", "small"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        SettingsError.exit_code,
        "Error: standard output cannot be written: No space left on device\n",
    )
