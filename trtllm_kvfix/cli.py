"""The command `trtllm-kvfix`. Exit codes: 0 good, 1 a hazard, a race or a failed check, 2 bad usage, settings or
output, 130 after ctrl-C, and 141 where the reader of a pipe has gone, as shells say of a program that a signal
has ended."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click
from click.shell_completion import CompletionItem

from trtllm_kvfix import __version__, usage
from trtllm_kvfix.errors import EXIT_INTERRUPTED, KvfixError, SettingsError

EXIT_PIPE_GONE = 141
BAD_USAGE = SettingsError.exit_code

# A command is imported when it is asked for, so that start-up stays cheap and one that cannot be loaded harms no other.
COMMANDS = {
    "bench": "trtllm_kvfix.tools.bench.command:bench",
    "demo": "trtllm_kvfix.tools.demo.command:demo",
    "disable": "trtllm_kvfix.overlay.hook_file:disable",
    "doctor": "trtllm_kvfix.tools.doctor.command:doctor",
    "enable": "trtllm_kvfix.overlay.hook_file:enable",
    "events": "trtllm_kvfix.tools.events.command:events",
    "replay": "trtllm_kvfix.tools.replay.command:replay",
    "reproduce": "trtllm_kvfix.tools.reproduce:reproduce",
    "run": "trtllm_kvfix.overlay.launch:run",
    "selfcheck": "trtllm_kvfix.tools.selfcheck.command:selfcheck",
    "status": "trtllm_kvfix.tools.status:status",
    "verify": "trtllm_kvfix.tools.verify.command:verify",
    "watch": "trtllm_kvfix.watch:watch",
}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report an error of ours, or a full disk, as one line and its exit code; anything else keeps its traceback."""
    try:
        yield
        sys.stdout.flush()  # so that a full disk is found here and not by the interpreter's end
    except BrokenPipeError as error:
        _give_up(sys.stdout)
        raise click.exceptions.Exit(EXIT_PIPE_GONE) from error
    except OSError as error:
        if not _did_not_take(error):
            raise
        _complain(f"Error: standard output cannot be written: {error.strerror}")
        _give_up(sys.stdout)
        raise click.exceptions.Exit(BAD_USAGE) from error
    except KeyboardInterrupt as error:  # where the command has nothing of its own to say: it has shown nothing yet
        _complain("Interrupted.")
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from error
    except KvfixError as error:
        _complain(f"Error: {error}")
        raise click.exceptions.Exit(error.exit_code) from error


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's interface
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module_name, attribute = COMMANDS[cmd_name].split(":")
        with one_line_errors():
            command: click.Command = getattr(import_module(module_name), attribute)
        command.epilog = command.epilog or usage.epilog_of(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """`--help` imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(usage.SUMMARIES.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Nor does a press of the tab key."""
        commands = [CompletionItem(name, help=text) for name, text in sorted(usage.SUMMARIES.items())]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [each for each in commands if each.value.startswith(incomplete)] + options

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing:  # completion, where a command that is misspelt is no error
            return super().resolve_command(ctx, args)
        near = [] if args[0] in COMMANDS else get_close_matches(args[0], COMMANDS, n=1)
        if near:
            ctx.fail(f"No such command {args[0]!r}; did you mean {near[0]}?")
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}; known are {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Reads the options, and prints `--help` and `--version`."""
        _prepare_streams()
        with one_line_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_errors():
            return super().invoke(ctx)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # click has bad usage to report, and standard error does not take it
            if not (_did_not_take(error) or isinstance(error, BrokenPipeError)):
                raise
            _give_up(sys.stderr)
            sys.exit(BAD_USAGE)


@click.group(cls=LazyGroup, epilog=usage.COMPLETION, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtllm-kvfix")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with a section `kvfix:`; overrides TRTLLM_KVFIX_CONFIG.",
)
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Fix KV-cache races in TensorRT-LLM, without a rebuild; start with `doctor`.

    \b
    trtllm-kvfix doctor            hit or not, by what, and what to do
    trtllm-kvfix run -- COMMAND    the server, with the fixes
    trtllm-kvfix verify            H1, H2, H5 and H9 beside their fixes, and H13
    """
    from trtllm_kvfix.settings import load  # noqa: PLC0415  --help and --version need no settings, so no pydantic

    if ctx.invoked_subcommand == "run":
        return  # it reads them itself, and not at all if the fixes are switched off
    ctx.obj = load(config)
    # Options of a command that bear a setting's name take their defaults from it.
    ctx.default_map = ctx.obj.model_dump()


# ---- standard output and standard error ----

# Python's own choices for standard output. Either ends a command at the first letter that the encoding lacks.
_STOPS_AT_A_LETTER = ("strict", "surrogateescape")


def _prepare_streams() -> None:
    """Call this before anything is written. What goes to a closed stream is discarded, and a letter that the terminal's
    encoding lacks is shown as `?`."""
    for number, name in enumerate(("stdout", "stderr"), start=1):
        stream = getattr(sys, name)
        if stream is None:
            # Only here: a command that `run` becomes finds the stream closed, as it would without us. At its number,
            # because C++ writes there; the first that is free is standard input's if that is closed as well.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number, inheritable=False)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _STOPS_AT_A_LETTER:
            stream.reconfigure(errors="replace")


def _did_not_take(error: OSError) -> bool:
    """Whether a stream did not take what was written: a full disk, a quota, a limit of file sizes, a failed device. An
    error with a file's name is about that file."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _complain(text: str) -> None:
    """Write to standard error. If that cannot be written either, the exit code has to be enough."""
    try:
        click.echo(text, err=True)
    except OSError:
        _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    """The stream cannot be written. Discard what it holds, or the interpreter would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
