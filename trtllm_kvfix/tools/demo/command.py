"""`trtllm-kvfix demo`: the command line around the scenes."""

import sys
from contextlib import suppress
from pathlib import Path

import click

from trtllm_kvfix import __version__, usage
from trtllm_kvfix.canary.canary import BLOCKS_PER_STEP
from trtllm_kvfix.engine.config import HAZARDS, MANAGERS
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.errors import EXIT_INTERRUPTED, KvfixError
from trtllm_kvfix.hazards.table import Scene
from trtllm_kvfix.native import DeviceError
from trtllm_kvfix.tools.demo.report import DemoReport, Printer, SceneOutcome, page, picture
from trtllm_kvfix.tools.demo.scenes import choose, play, with_canary
from trtllm_kvfix.tools.terminal import terminal
from trtllm_kvfix.written import check_folder, write


@click.command()
@usage.device_option
@click.option(
    "--fix",
    "choices",
    multiple=True,
    metavar="ID=off|on",
    shell_complete=usage.one_of(f"{fix_id}={word}" for fix_id in HAZARDS for word in ("off", "on")),
    help=f"`off`: show only its scene; `on`: leave its scene out; repeatable. {', '.join(HAZARDS)}.",
)
@click.option(
    "--manager", type=click.Choice(MANAGERS), help="How requests are admitted; by default as each scene needs."
)
@click.option(
    "--canary",
    "has_canary",
    is_flag=True,
    help=f"Look for cached blocks that change: {BLOCKS_PER_STEP} in each step, and those that are reused or freed.",
)
@click.option("--seed", type=usage.SEED, default=0, show_default=True, help="Seed of the simulated device.")
@usage.json_option
@usage.file_option("html", "Write a page with everything that was read.")
@usage.file_option("svg", "Draw what the terminal shows.")
def demo(
    device_name: str,
    choices: tuple[str, ...],
    manager: str | None,
    has_canary: bool,
    seed: int,
    as_json: bool,
    html_path: Path | None,
    svg_path: Path | None,
) -> None:
    """Let a few users chat, without each fix and with all, and show what they should read and what they read.

    The engine is small and our own, and its model recites. It needs no TensorRT-LLM and no weights; on a GPU it needs
    torch. The exit code is 0 if answers are wrong without each fix and right with it; 1 if not; 2 on bad usage or if a
    file cannot be written; 130 after Ctrl-C. With --canary, it must also speak without the fixes of H1, H2, H5 and H8,
    and be silent with all.
    """
    scenes = choose(choices, manager)
    if has_canary:
        scenes = [with_canary(scene) for scene in scenes]
    check_folder("--html", html_path)
    check_folder("--svg", svg_path)
    printer = Printer(terminal(quiet=as_json))
    try:
        report = run(scenes, device_name, seed, printer)
    except DeviceError as error:
        raise KvfixError(f"the device failed: {error}") from error
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    write("--html", html_path, lambda: page(report))
    write("--svg", svg_path, lambda: picture(report))
    sys.exit(exit_code(report))


def exit_code(report: DemoReport) -> int:
    if report.partial and all(scene.shown for scene in report.scenes):
        return EXIT_INTERRUPTED
    return 0 if report.proven else 1


def run(scenes: list[Scene], device_name: str, seed: int, printer: Printer) -> DemoReport:
    machine = open_machine(device_name, seed=seed)
    device, simulated = machine.device.name, machine.simulated
    machine.close()
    printer.begin(device, len(scenes))
    outcomes: list[SceneOutcome] = []
    with suppress(KeyboardInterrupt):
        for scene in scenes:
            outcomes.append(play(scene, device_name, seed))
            printer.scene(outcomes[-1])
    report = DemoReport(
        version=__version__,
        device=device,
        simulated=simulated,
        seed=seed,
        scenes=outcomes,
        scenes_planned=len(scenes),
    )
    printer.end(report)
    return report
