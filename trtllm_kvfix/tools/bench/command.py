"""`trtllm-kvfix bench`: the command line around the runs."""

import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import click

from trtllm_kvfix import __version__, usage
from trtllm_kvfix.canary.canary import BLOCKS_PER_STEP
from trtllm_kvfix.engine.machine import open_machine
from trtllm_kvfix.errors import EXIT_INTERRUPTED, KvfixError
from trtllm_kvfix.native import DeviceError
from trtllm_kvfix.tools.bench.arrivals import LOADS, Sizes, from_trace, generated
from trtllm_kvfix.tools.bench.report import BenchReport, WayOutcome, plot, print_report
from trtllm_kvfix.tools.bench.runs import SIZES, VOCABULARY, execute, ways
from trtllm_kvfix.tools.pictures import check_plot
from trtllm_kvfix.tools.progress import progress_bar
from trtllm_kvfix.tools.terminal import terminal

RATE = {"small": 100.0, "large": 60.0}
DEFAULT_LOAD = "bursts"
REQUESTS = {"small": 64, "large": 160}


@click.command()
@click.argument("trace", required=False, type=click.Path(dir_okay=False, path_type=Path))
@usage.device_option
@click.option(
    "--model",
    "model_name",
    type=click.Choice(sorted(SIZES)),
    help="Size of the model; by default large on a GPU, else small.",
)
@click.option(
    "--load",
    "load_name",
    type=click.Choice(list(LOADS)),
    help=f"Generated load; by default {DEFAULT_LOAD}. {'; '.join(f'{key}: {LOADS[key].purpose}' for key in LOADS)}.",
)
@click.option("--requests", type=click.IntRange(2, 1_000_000), help="Number of requests of the load.")
@click.option("--rate", type=usage.Real(min=0.001), help="Requests a second, on average.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each configuration.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated load.")
@click.option(
    "--canary",
    "has_canary",
    is_flag=True,
    help=f"Run with all fixes once more, beside a canary that looks at {BLOCKS_PER_STEP} blocks in each step.",
)
@usage.json_option
@usage.file_option("plot", "Draw it: .png or .svg.")
def bench(
    trace: Path | None,
    device_name: str,
    model_name: str | None,
    load_name: str | None,
    requests: int | None,
    rate: float | None,
    repeats: int,
    seed: int,
    has_canary: bool,
    as_json: bool,
    plot_path: Path | None,
) -> None:
    """Run the embedded engine under load, without each fix, and with each manager and tier: tokens per second, latency.

    The load is generated, or takes the arrivals and shared prefixes of a TRACE (JSON lines, as for `replay`), cut down
    to the model's size. On a GPU the engine needs torch. The exit code is 2 on bad usage or a bad trace.
    """
    if trace is not None and load_name is not None:
        raise click.UsageError(f"--load {load_name} is for a generated load, and {trace} is given")
    if plot_path is not None:
        check_plot(plot_path)
    machine = open_machine(device_name)
    device, simulated = machine.device.name, machine.simulated
    machine.close()
    name = model_name or ("small" if simulated else "large")
    requests, rate = requests or REQUESTS[name], rate or RATE[name]
    size = SIZES[name]
    sizes = Sizes(VOCABULARY, size.config.length_max)
    load_name = load_name or DEFAULT_LOAD
    if trace is None:
        arrivals = generated(LOADS[load_name], requests, rate, sizes, seed)
    else:
        arrivals = from_trace(trace, requests, rate, sizes)
    chosen = ways(size.config, graphs=not simulated, canary=has_canary)
    arms = measured(len(chosen) * repeats, partial(execute, chosen, size.model(), arrivals, device_name, repeats))
    report = BenchReport(
        version=__version__,
        device=device,
        simulated=simulated,
        model=size.text,
        load=f"{load_name}: {LOADS[load_name].purpose}; seed {seed}" if trace is None else trace.name,
        requests=len(arrivals),
        rate=rate,
        repeats=repeats,
        arms=arms,
    )
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        print_report(terminal(), report)
    if plot_path is not None:
        plot(report, plot_path)


def measured(runs: int, measure: Callable[[Callable[[], object]], list[WayOutcome]]) -> list[WayOutcome]:
    """`measure` reports each run as it ends."""
    numbers = count(1)
    try:
        with progress_bar("bench", runs) as on_finished:
            return measure(lambda: on_finished(next(numbers)))
    except KeyboardInterrupt:
        click.echo(
            "Interrupted: the configurations take turns, so nothing can be compared before the last run.", err=True
        )
        sys.exit(EXIT_INTERRUPTED)
    except DeviceError as error:
        raise KvfixError(f"the device failed: {error}") from error
