"""Help shows first steps, and a shell completes commands, options and values."""

import os
import shlex
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from trtllm_kvfix import cli, usage
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.tools.verify.cases import NAMES

EXAMPLES = [(name, example) for name, examples in usage.EXAMPLES.items() for example in examples]


def completed(words: str, incomplete: str) -> list[str]:
    shell = ShellComplete(cli.main, {}, "trtllm-kvfix", "_TRTLLM_KVFIX_COMPLETE")
    return [item.value for item in shell.get_completions(shlex.split(words), incomplete)]


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_h_is_help(name: str) -> None:
    short, long = (CliRunner().invoke(cli.main, [*name.split(), option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert "Usage: main" in short.output


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_cuts_no_sentence_off(name: str) -> None:
    shown = CliRunner().invoke(cli.main, ["-h"], terminal_width=80).output
    assert f"  {name:<11}{usage.SUMMARIES[name]}\n" in shown


@pytest.mark.parametrize(
    "asked", [{}, {"_TRTLLM_KVFIX_COMPLETE": "bash_complete", "COMP_WORDS": "", "COMP_CWORD": "1"}]
)
def test_the_list_of_commands_imports_none_of_them(asked: dict[str, str]) -> None:
    modules = [where.split(":")[0] for where in cli.COMMANDS.values()]
    program = f"""if True:
        import atexit, sys
        atexit.register(lambda: sys.stderr.write(str([name for name in {modules} if name in sys.modules])))
        from trtllm_kvfix.cli import main
        main(["--help"], prog_name="trtllm-kvfix")"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **asked}, check=True
    )
    assert all(name in ended.stdout for name in cli.COMMANDS)
    assert ended.stderr == "[]"


def test_a_command_that_is_misspelt_is_named() -> None:
    near, far = (CliRunner().invoke(cli.main, [name]) for name in ("doktor", "xyz"))
    assert (near.exit_code, far.exit_code) == (2, 2)
    assert "No such command 'doktor'; did you mean doctor?" in near.output
    assert "did you mean" not in far.output


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_each_command_has_examples(name: str) -> None:
    shown = CliRunner().invoke(cli.main, [name, "--help"]).output
    assert "Example" in shown
    for example in usage.EXAMPLES.get(name, ()):
        assert f"  {example}\n" in shown  # as it is typed, not filled


def test_help_fits_a_terminal_of_80_columns() -> None:
    shown = CliRunner().invoke(cli.main, ["--help"], terminal_width=80).output
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_a_command_that_is_not_like_any_lists_them_all() -> None:
    result = CliRunner().invoke(cli.main, ["halp"])
    assert result.exit_code == 2
    assert "No such command 'halp'; known are bench, demo, " in result.output


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=lambda value: value)
def test_example_is_a_command_line_of_ours(name: str, example: str) -> None:
    program, command, *arguments = shlex.split(example.partition(" > ")[0])
    found = cli.main.get_command(click.Context(cli.main), command)
    assert (program, command) == ("trtllm-kvfix", name)
    assert found is not None
    strict = click.Context(found, allow_interspersed_args=False)
    found.make_parser(strict).parse_args(arguments)  # raises where there is no such option


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ("", "ver", ["verify"]),
        ("run", "--dr", ["--dry-run"]),
        ("run --manager", "n", ["native"]),
        ("run --fix", "token-budget=o", ["token-budget=on", "token-budget=off", "token-budget=observe"]),
        ("demo --fix", "staged-offsets-v1=o", ["staged-offsets-v1=off", "staged-offsets-v1=on"]),
        ("replay --generate", "sm", ["small"]),
        ("verify --device", "c", ["cpu", "cuda", "cuda:0"]),
        ("bench --device", "a", ["auto"]),
        ("nosuch", "ver", ["verify"]),
    ],
)
def test_shell_completes(words: str, incomplete: str, offered: list[str]) -> None:
    assert completed(words, incomplete) == offered


def test_shell_completes_every_name_that_there_is() -> None:
    assert {value.partition("=")[0] for value in completed("run --fix", "")} == set(FIX_IDS)
    assert completed("verify --case", "") == list(NAMES)
    assert completed("", "") == sorted(cli.COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_help_names_the_variable_that_click_answers_to(shell: str) -> None:
    assert f"{shell}_source" in usage.COMPLETION
    code = "import sys; sys.argv[0] = 'trtllm-kvfix'; from trtllm_kvfix.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"_TRTLLM_KVFIX_COMPLETE": f"{shell}_source", "PATH": "/bin:/usr/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.returncode, "_TRTLLM_KVFIX_COMPLETE" in done.stdout) == (0, True), done.stderr


def test_no_option_takes_what_is_not_a_number() -> None:
    with pytest.raises(click.BadParameter, match="nan is not a number"):
        usage.Real(0, 1).convert("nan", None, None)
    assert usage.Real(0, 1).convert("0.5", None, None) == 0.5
    ours = [command for name in cli.COMMANDS if (command := cli.main.get_command(click.Context(cli.main), name))]
    kinds = [param.type for command in ours if command.name != "watch" for param in command.params]
    assert {type(kind) for kind in kinds if isinstance(kind, click.types.FloatParamType)} == {usage.Real}
