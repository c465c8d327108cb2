"""`trtllm-kvfix doctor`: what is installed here, which fixes TensorRT-LLM needs, and whether they are on."""

import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_kvfix import __version__, machine, usage
from trtllm_kvfix.errors import ExtensionMissing
from trtllm_kvfix.overlay.releases import distribution_version
from trtllm_kvfix.sizes import bytes_text

if TYPE_CHECKING:
    from rich.console import Console

    from trtllm_kvfix.settings import Settings


# Without kernels for the GPU the fixes hold, and some are slower. Figures: docs/benchmarks.md (What bounds it) and
# docs/offload.md (Speed), on an H200.
COSTS = (
    "the CPU copies tables of block offsets of 64 KiB or more; from 16 MiB on, that takes 1.6 to 2.9 times as long",
    "block offsets of V2 managers travel as two tables, where one is enough",
    "the offload connector stores blocks of 16 KiB at 34 GB/s instead of 49, and loads them at 27 instead of 42",
    "`verify` shows the order of operations on the simulated device, and nothing about this GPU",
)
CURE = "build it where nvcc 12 or newer is in PATH or in CUDA_HOME: pip install . -C cmake.define.KVFIX_KERNELS=ON"


def why_missing(extension: Mapping[str, str], machine: Mapping[str, Any]) -> str | None:
    """None: there are kernels, and the GPU that is here, if any, runs them."""
    if extension.get("kernels") == "none":
        return "this build has no CUDA kernels, as nvcc was not found"
    if machine["gpu"] is not None and not machine["gpu_runs_kernels"]:
        return f"this build has CUDA kernels for {extension.get('kernels')}, none of which runs on {machine['gpu']}"
    return None


def _lines_on_kernels(why: str) -> Iterator[str]:
    yield f"{why}. What that costs:"
    yield from (f"  {cost}" for cost in COSTS)
    yield f"  {CURE}"


OPTIONAL = ("matplotlib", "mpi4py", "tensorrt_llm", "torch")


def examine(settings: "Settings", source: Path | None = None, *, also_running: bool = True) -> dict[str, Any]:
    """The report as plain values. Optional packages are looked up by their metadata. TensorRT-LLM is imported, or read
    in `source`. also_running: look at the servers of this user that run."""
    report: dict[str, Any] = {
        "package": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "numpy": distribution_version("numpy"),
        "optional": {name: distribution_version(name) for name in OPTIONAL},
        "machine": machine.describe(),
        "extension": None,
        "kernels_missing": None,  # why, where nothing is wrong and something is slower
        "overlay": None,
        "displaced": [],  # of servers of this user that run
        "problems": [],
    }
    try:
        from trtllm_kvfix import native  # noqa: PLC0415  a missing extension is a finding here, not a failed import

        report["extension"] = native.build_info()
    except ExtensionMissing as error:
        report["problems"].append(str(error))
        return report
    report["kernels_missing"] = why_missing(report["extension"], report["machine"])
    if report["extension"]["locks"] != "yes":
        report["problems"].append("the extension was built without its lock (KVFIX_NO_LOCK): rebuild it before use")
    from trtllm_kvfix.fixes import ALL  # noqa: PLC0415
    from trtllm_kvfix.overlay.registry import Registry  # noqa: PLC0415
    from trtllm_kvfix.tools.doctor import examine as overlay  # noqa: PLC0415  the fixes need the extension
    from trtllm_kvfix.tools.doctor.source_tree import SourceTree  # noqa: PLC0415

    if source is not None:
        report["overlay"] = overlay.examine_source(SourceTree(source), settings, Registry(ALL))
    else:
        report["overlay"] = overlay.examine(settings, Registry(ALL))
        if also_running:
            report["displaced"] = displaced(settings)
            report["problems"] += report["displaced"]
    report["problems"] += report["overlay"].pop("problems")
    return report


def displaced(settings: "Settings") -> list[str]:
    """The seams of running servers that another tool has taken, as these servers have attested."""
    from trtllm_kvfix.overlay import attest  # noqa: PLC0415  a report without an overlay does without it
    from trtllm_kvfix.runtime_files import folder_of  # noqa: PLC0415

    return [
        f"process {entry['pid']} (rank {entry['rank']}) runs past {name}: calls come to {by}; usual cause: a tool that "
        "was started after the fixes and replaces the same method"
        for entry in attest.live(folder_of(settings))
        for name, by in entry["displaced"].items()
    ]


def as_the_server(settings: "Settings", command: Sequence[str], *, runs_here: bool) -> "Settings":
    """The settings of a server that `run` starts with `settings` and this command, here or elsewhere."""
    from trtllm_kvfix.overlay import launch, server_config  # noqa: PLC0415  a report without a command does without them
    from trtllm_kvfix.settings import as_variables, environment  # noqa: PLC0415

    if runs_here:
        launch.checked(command)
    return server_config.settings_for(command, environment() | as_variables(settings))


@click.command(context_settings={"allow_interspersed_args": False})
@usage.json_option
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Examine the TensorRT-LLM in this folder without importing it: a checkout, or an unpacked wheel.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def doctor(settings: "Settings", as_json: bool, source: Path | None, command: tuple[str, ...]) -> None:
    """Show what is installed here, which fixes it needs, and what each fix would do.

    COMMAND may be the one that starts the server. It is not run. Its YAML file's section `kvfix:` counts, as it will
    in the server. Servers that run already are another matter then, and not looked at.

    The exit code is 1 if TensorRT-LLM is not installed here, the native extension is missing or unusable, a fix fails
    its self-test, a fix that this TensorRT-LLM needs would not reach a server that is started from here, a probe cannot
    decide whether a fix is needed, or another tool has displaced a fix in a server of this user that runs. A fix that
    settings switch off is your decision, which is shown and no problem.
    """
    if command:
        settings = as_the_server(settings, command, runs_here=source is None)
    report = examine(settings, source, also_running=not command)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(report)
    sys.exit(1 if report["problems"] else 0)


def show(report: Mapping[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415  --json does without it

    from trtllm_kvfix.tools.terminal import terminal  # noqa: PLC0415

    table = Table(box=None, show_header=False)
    for key in ("package", "python", "platform", "numpy"):
        table.add_row(key, report[key] or "not installed")
    for key, value in (report["extension"] or {"extension": "missing"}).items():
        table.add_row(key if report["extension"] is None else f"extension {key}", value)
    for key, value in report["optional"].items():
        table.add_row(f"optional {key}", value or "not installed")
    found = report["machine"]
    table.add_row("driver", found["driver"] or "none")
    table.add_row("GPU", found["gpu"] or "none")
    locked = found["memory_lock_bytes"]
    table.add_row("memory lock", "unlimited" if locked is None else f"at most {bytes_text(locked)} (ulimit -l)")
    console = terminal()
    console.print(table)
    if report["kernels_missing"] is not None:
        for line in _lines_on_kernels(report["kernels_missing"]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if report["overlay"] is not None:
        show_overlay(console, report["overlay"])
        for decision in report["overlay"]["switched_off"]:
            console.print(f"off: {decision}", markup=False, soft_wrap=True)
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="bold", markup=False, soft_wrap=True)


def show_overlay(console: "Console", overlay: Mapping[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415

    if not overlay["installed"]:
        return
    version = overlay["version"] or "of unknown version"
    release = overlay["release"]
    number = "" if release is None else f" (by its number {' or '.join(release['variants'])})"
    how = "read, not imported" if overlay["hook"] == "source" else f"hook: {overlay['hook']}"
    console.print(f"TensorRT-LLM {version}, variant {overlay['variant']}{number}; {how}")
    fixes = Table(box=None)
    for column in ("fix", "setting", "state", "reason", "self-test"):
        fixes.add_column(column, overflow="fold")
    for fix in overlay["fixes"]:
        fixes.add_row(fix["id"], fix["choice"], fix["outlook"], fix["reason"], overlay["self_tests"][fix["id"]])
    console.print(fixes)
    unguarded = [each for each in overlay["buffers"] if each["guard"] is None]
    counted = f"{len(overlay['buffers'])}, without a guard: {len(unguarded)}"
    console.print(f"host buffers that are copied asynchronously and kept: {counted}")
    for each in unguarded:
        console.print(f"  {each['file']}:{each['line']} {each['name']}", markup=False, highlight=False, soft_wrap=True)
