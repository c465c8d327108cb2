"""`trtllm-kvfix verify`: the command line around the runner."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from trtllm_kvfix import __version__, usage
from trtllm_kvfix.errors import EXIT_INTERRUPTED, KvfixError, SettingsError
from trtllm_kvfix.hazards.case import Case
from trtllm_kvfix.native import Device, DeviceError, open_device
from trtllm_kvfix.tools.progress import progress_bar
from trtllm_kvfix.tools.terminal import terminal
from trtllm_kvfix.tools.verify.cases import NAMES, run_case, select
from trtllm_kvfix.tools.verify.report import (
    CaseNotShown,
    CaseOutcome,
    DeviceInfo,
    Verdict,
    VerifyReport,
    page,
    print_report,
)
from trtllm_kvfix.written import check_folder, write


@click.command()
@usage.device_option
@click.option(
    "--case",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice(NAMES),
    help=f"One of {', '.join(NAMES)}; repeatable.",
)
@click.option(
    "--iterations", type=click.IntRange(min=1), default=150, show_default=True, help="Iterations of each arm."
)
@click.option("--seed", type=usage.SEED, default=0, show_default=True, help="Seed of contents and simulation.")
@usage.json_option
@usage.file_option("html", "Write a page with measured timelines of every arm.")
def verify(
    device_name: str, names: tuple[str, ...], iterations: int, seed: int, as_json: bool, html_path: Path | None
) -> None:
    """Reproduce H1, H2, H5, H9 and H13 in a control without the fix, and show that the fix holds, on this machine.

    The other hazards are shown by `selfcheck` and `demo`. This command needs no TensorRT-LLM and no model, and loads
    none. Device `auto` is the first GPU, or else a simulated device, which shows the order of operations only, and not
    what a driver does (H13). The exit code is 0 if every control corrupts and no fix does; 1 if a fix corrupts, a
    control stays clean or the device was not held; 2 on bad usage, if no case can be asked of this device, or if --html
    cannot be written; 130 after Ctrl-C, with the cases that ran.
    """
    cases = select(names)
    check_folder("--html", html_path)
    try:
        report = run(chosen(device_name, seed), cases, iterations, seed)
    except DeviceError as error:
        raise KvfixError(f"the device failed: {error}") from error
    if cannot_be_asked(report):
        raise SettingsError(f"--case is '{names[0]}': {report.not_shown[0].why}")
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        print_report(terminal(), report)
        if html_path is None:
            click.echo("For a page with a timeline of every arm, add --html FILE.", err=True)
    write("--html", html_path, lambda: page(report))
    sys.exit(exit_code(report))


def exit_code(report: VerifyReport) -> int:
    if report.partial and all(case.verdict is Verdict.PROVEN for case in report.cases):
        return EXIT_INTERRUPTED
    return 0 if report.proven else 1


def cannot_be_asked(report: VerifyReport) -> bool:
    """About anything that was wanted."""
    return bool(report.not_shown) and not report.cases and not any(each.looked for each in report.not_shown)


class Chosen(NamedTuple):
    device: Device
    passed_over: str | None  # the GPU that cannot run the cases


def chosen(name: str, seed: int) -> Chosen:
    """Open the device. The cases launch kernels; a build without kernels can only use the simulated device."""
    try:
        device = open_device(name, seed=seed)
    except (DeviceError, ValueError) as error:
        said = str(error).removeprefix(f"device is '{name}'; ")
        raise SettingsError(f"--device is '{name}': {said}") from error
    if device.has_kernels:
        return Chosen(device, None)
    if name != "auto":
        raise SettingsError(
            f"--device is '{name}': {device.name} has no kernels to run, which the controls launch; rebuild this "
            "package where nvcc is in PATH, or take --device cpu, which shows the order of operations only"
        )
    return Chosen(open_device("cpu", seed=seed), device.name)


def run(chosen: Chosen, cases: list[Case], iterations: int, seed: int) -> VerifyReport:
    device = chosen.device
    absent = not_shown(device, cases)
    shown = [case for case in cases if case not in absent]
    return VerifyReport(
        version=__version__,
        device=DeviceInfo(
            name=device.name,
            simulated=device.simulated,
            has_kernels=device.has_kernels,
            has_batched_copy=device.has_batched_copy,
            passed_over=chosen.passed_over,
        ),
        iterations=iterations,
        seed=seed,
        cases=run_all(device, shown, iterations, seed),
        not_shown=list(absent.values()),
        cases_planned=len(cases),
    )


def not_shown(device: Device, cases: list[Case]) -> dict[Case, CaseNotShown]:
    found = ((case, case.not_shown(device)) for case in cases)
    return {
        case: CaseNotShown(case=case.name, variant=case.variant, hazard=case.hazard, why=why.why, looked=why.looked)
        for case, why in found
        if why is not None
    }


def run_all(device: Device, cases: list[Case], iterations: int, seed: int) -> list[CaseOutcome]:
    """All cases, or those that had ended when Ctrl-C came."""
    outcomes: list[CaseOutcome] = []
    arms = sum(2 + (case.half is not None) for case in cases)
    with progress_bar("verify", arms * iterations) as on_finished:
        done = 0

        def on_iteration() -> None:
            nonlocal done
            done += 1
            on_finished(done)

        with suppress(KeyboardInterrupt):
            for case in cases:
                outcomes.append(run_case(device, case, iterations, seed, on_iteration))  # noqa: PERF401  keeps what ran
    return outcomes
