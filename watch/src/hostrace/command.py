"""`trtllm-kvfix watch -- COMMAND`."""

import json
import shutil
from pathlib import Path

import click

from hostrace import launch
from hostrace.page import page
from hostrace.races import read
from hostrace.report import Report, as_json, lines
from hostrace.suppressions import load
from trtllm_kvfix.usage import Real
from trtllm_kvfix.written import check_folder, write

HOLD_LIMIT_MAX_S = 86400.0
OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--hold", is_flag=True, help="Make a thread that races wait until the device is done.")
@click.option(
    "--hold-limit",
    type=Real(min=0.001, max=HOLD_LIMIT_MAX_S),
    default=10.0,
    show_default=True,
    help="Seconds after which such a thread goes on.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 after possible races, too.")
@click.option(
    "--suppress",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with known races: patterns of frames, one in each line.",
)
@click.option("--json", "json_file", type=OUTPUT, help="Write the report to FILE as JSON.")
@click.option("--html", "html_file", type=OUTPUT, help="Write the report to FILE as one page with timelines.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def watch(
    ctx: click.Context,
    hold: bool,
    hold_limit: float,
    strict: bool,
    suppress: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and report where the host touches pinned memory that the device still uses.

    The exit code is COMMAND's; 1 if that is 0 and there was a race; 2 if nothing could be watched or a report cannot be
    written. Ctrl-C goes to COMMAND; the report shows what was seen until it ends.
    """
    check_folder("--json", json_file)
    check_folder("--html", html_file)
    suppressions = load(suppress) if suppress is not None else []
    folder, environ = launch.prepared(round(hold_limit * 1000) if hold else None)
    try:
        status = launch.run(command, environ)
        report = Report.of(list(command), status, hold, read(folder), suppressions)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in lines(report):
        click.echo(f"trtllm-kvfix watch: {line}", err=True)
    write("--json", json_file, lambda: json.dumps(as_json(report), indent=2) + "\n")
    write("--html", html_file, lambda: page(report))
    ctx.exit(launch.end_as(status) or int(report.failed(strict)))
