"""`trtllm-kvfix demo`: the command line around the scenes."""

import sys
from pathlib import Path

import click
from rich.console import Console

from trtllm_kvfix import __version__
from trtllm_kvfix.engine.config import HAZARDS, MANAGERS
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.errors import EXIT_INTERRUPTED, KvfixError, SettingsError
from trtllm_kvfix.native import DeviceError
from trtllm_kvfix.tools.demo.outcome import Report
from trtllm_kvfix.tools.demo.page import page
from trtllm_kvfix.tools.demo.report import Printer, picture
from trtllm_kvfix.tools.demo.scenes import Scene, choose, play


@click.command()
@click.option("--device", "device_name", default="auto", show_default=True, metavar="cpu|cuda[:N]|auto")
@click.option(
    "--fix",
    "choices",
    multiple=True,
    metavar="ID=off|on",
    help=f"`off`: show only what is lost without it; `on`: leave its scene out; repeatable. {', '.join(HAZARDS)}.",
)
@click.option(
    "--manager", type=click.Choice(MANAGERS), help="How requests are admitted; by default as each scene needs it."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the simulated device.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option(
    "--html",
    "html_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with everything that was read.",
)
@click.option(
    "--svg",
    "svg_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw what the terminal shows.",
)
def demo(
    device_name: str,
    choices: tuple[str, ...],
    manager: str | None,
    seed: int,
    as_json: bool,
    html_path: Path | None,
    svg_path: Path | None,
) -> None:
    """Let a few users chat, without each fix and with all: what they should read, and what they read.

    The engine is our own and small, its model recites: needs no TensorRT-LLM, no weights, and a GPU only with torch.
    Exits with 0 when answers are wrong without each fix and none is with it, with 1 when not, with 2 on bad usage.
    """
    scenes = choose(choices, manager)
    for option, path in (("--html", html_path), ("--svg", svg_path)):
        if path is not None and not path.parent.is_dir():
            raise SettingsError(f"{option} is '{path}': there is no directory {path.parent}")
    printer = Printer(Console(quiet=as_json))
    try:
        report = run(scenes, device_name, seed, printer)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except DeviceError as error:
        raise KvfixError(f"the device failed: {error}") from error
    if html_path is not None:
        html_path.write_text(page(report), encoding="utf-8")
    if svg_path is not None:
        svg_path.write_text(picture(report), encoding="utf-8")
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    sys.exit(0 if report.proven else 1)


def run(scenes: list[Scene], device_name: str, seed: int, printer: Printer) -> Report:
    machine = open_machine(device_name, seed=seed)
    device, simulated = machine.device.name, machine.simulated
    machine.close()
    printer.begin(device, len(scenes))
    outcomes = []
    for scene in scenes:
        outcomes.append(play(scene, device_name, seed))
        printer.scene(outcomes[-1])
    report = Report(version=__version__, device=device, simulated=simulated, seed=seed, scenes=outcomes)
    printer.end(report)
    return report
