"""`hostrace -- COMMAND`, and `hostrace diff`. Exit codes of the first: the command's; 1 after a race; 2 if nothing can
be watched, and for bad usage; 130 after ctrl-C in front of the command."""

import json
import shutil
import sys
from collections.abc import Callable
from math import isnan
from pathlib import Path

import click
from click.core import ParameterSource

from hostrace import __version__, launch
from hostrace.diff import diff, send_to_nowhere
from hostrace.errors import HostraceError
from hostrace.page import page
from hostrace.races import read
from hostrace.report import Report, as_json, lines
from hostrace.sarif import sarif
from hostrace.suppressions import load
from hostrace.symbols import Symbols

HOLD_LIMIT_MAX_S = 86400.0
EXIT_BLIND = 2
EXIT_INTERRUPTED = 130
OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)
SETTINGS = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
}


def a_number(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    """click takes `nan` for a number in every range, as it is neither below nor above any bound."""
    if isnan(value):
        raise click.BadParameter("nan is not a number.")
    return value


@click.command(context_settings=SETTINGS)
@click.option("--hold", is_flag=True, help="Make a thread that races wait until the device is done.")
@click.option(
    "--hold-limit",
    type=click.FloatRange(min=0.001, max=HOLD_LIMIT_MAX_S),
    callback=a_number,
    default=10.0,
    show_default=True,
    help="Seconds after which such a thread goes on.",
)
@click.option("--only-observed", is_flag=True, help="Report only what the device had not finished at the touch.")
@click.option("--gates", is_flag=True, help="Take a stream that waits for a value for a busy one, as a test's gate is.")
@click.option("--strict", is_flag=True, help="Exit with 1 after possible races, too.")
@click.option(
    "--suppress",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with known races: patterns of frames, one in each line.",
)
@click.option("--json", "json_file", type=OUTPUT, help="Write the report to FILE as JSON.")
@click.option("--sarif", "sarif_file", type=OUTPUT, help="Write the report to FILE as SARIF, for code hosts.")
@click.option("--html", "html_file", type=OUTPUT, help="Write the report to FILE as one page with timelines.")
@click.version_option(__version__, prog_name="hostrace")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def watch(
    ctx: click.Context,
    hold: bool,
    hold_limit: float,
    only_observed: bool,
    gates: bool,
    strict: bool,
    suppress: Path | None,
    json_file: Path | None,
    sarif_file: Path | None,
    html_file: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and report where the host touches pinned memory that the device still uses.

    The exit code is COMMAND's; 1 if that is 0 and there was a race; 2 if nothing could be watched or a report cannot be
    written. Ctrl-C goes to COMMAND; the report shows what was seen until it ends.

    `diff BEFORE AFTER` as the command compares two reports of --json, and runs nothing.
    """
    if command[0] == "diff":
        compare(ctx, command[1:])
    for option, file in (("--json", json_file), ("--sarif", sarif_file), ("--html", html_file)):
        if file is not None and not file.parent.is_dir():
            raise HostraceError(f"{option} is '{file}': there is no folder {file.parent}")
    suppressions = load(suppress) if suppress is not None else []
    asked = {launch.ENV_ONLY_OBSERVED: only_observed, launch.ENV_GATES: gates}
    settings = [name for name, on in asked.items() if on]
    try:
        folder, environ = launch.prepared(round(hold_limit * 1000) if hold else None, settings)
        try:
            status = launch.run(command, environ)
            processes, symbols = read(folder), Symbols()
            symbols.name(race for process in processes for race in process.races)
            report = Report.of(list(command), status, hold, processes, suppressions, symbols.notes)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        ctx.exit(EXIT_INTERRUPTED)
    for line in lines(report):
        tell(f"hostrace: {line}")
    write("--json", json_file, lambda: json.dumps(as_json(report), indent=2) + "\n")
    write("--sarif", sarif_file, lambda: json.dumps(sarif(report, Path.cwd()), indent=2) + "\n")
    write("--html", html_file, lambda: page(report))
    ctx.exit(launch.end_as(status) or (EXIT_BLIND if report.blind else int(report.failed(strict))))


def compare(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """`hostrace diff`, for which the options of a run mean nothing."""
    given = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given != ["command"]:
        raise click.UsageError(
            "`diff` takes no options of a run, and no program runs. Give a program of that name by its path."
        )
    diff.main(args=list(arguments), prog_name=f"{ctx.command_path} diff")


def write(option: str, file: Path | None, text: Callable[[], str]) -> None:
    """After the races have been shown: a report that cannot be written never hides them."""
    if file is None:
        return
    made = text()
    try:
        file.write_text(made, encoding="utf-8", errors="backslashreplace")  # arguments of the command may be any bytes
    except OSError as error:
        raise HostraceError(f"{option} is '{file}': it cannot be written: {error.strerror or error}") from error
    tell(f"Wrote {file}")


def tell(text: str) -> None:
    """On standard error. If its reader has gone, or the disk is full, reports are written and the exit code is right
    all the same."""
    try:
        click.echo(text, err=True)
    except OSError:
        send_to_nowhere(sys.stderr)
