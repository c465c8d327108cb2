"""`trtllm-kvfix doctor`: whether the TensorRT-LLM here is hit, whether its fixes are on, and what is installed."""

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_kvfix import __version__, machine, usage
from trtllm_kvfix.errors import ExtensionMissing
from trtllm_kvfix.overlay.releases import distribution_version

if TYPE_CHECKING:
    from trtllm_kvfix.settings import Settings

OPTIONAL = ("matplotlib", "mpi4py", "tensorrt_llm", "torch")


def why_missing(extension: Mapping[str, str], machine: Mapping[str, Any]) -> str | None:
    """None: there are kernels, and the GPU that is here, if any, runs them."""
    if extension.get("kernels") == "none":
        return "this build has no CUDA kernels, as nvcc was not found"
    if machine["gpu"] is not None and not machine["gpu_runs_kernels"]:
        return f"this build has CUDA kernels for {extension.get('kernels')}, none of which runs on {machine['gpu']}"
    return None


def examine(
    settings: "Settings", source: Path | None = None, command: Sequence[str] = (), *, also_running: bool = True
) -> dict[str, Any]:
    """The report as plain values. Optional packages are looked up by their metadata. TensorRT-LLM is imported, or read
    in `source`. `command` starts the server. also_running: look at the servers of this user that run."""
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
        "running": [],  # processes of this user that have fixes
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
        report["overlay"] = overlay.examine_source(SourceTree(source), settings, Registry(ALL), command)
    else:
        report["overlay"] = overlay.examine(settings, Registry(ALL), command)
        if also_running:
            entries = running(settings)
            report["running"] = [entry["pid"] for entry in entries if "applied" in entry["fixes"].values()]
            report["displaced"] = displaced(entries)
            report["problems"] += report["displaced"]
    report["problems"] += report["overlay"].pop("problems")
    return report


def running(settings: "Settings") -> list[dict[str, Any]]:
    """What servers of this user have attested that run."""
    from trtllm_kvfix.overlay import attest  # noqa: PLC0415  a report without an overlay does without it
    from trtllm_kvfix.runtime_files import folder_of  # noqa: PLC0415

    return attest.live(folder_of(settings))


def displaced(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The seams of running servers that another tool has taken."""
    return [
        f"process {entry['pid']} (rank {entry['rank']}) runs past {name}: calls come to {by}; usual cause: a tool that "
        "was started after the fixes and replaces the same method"
        for entry in entries
        for name, by in entry["displaced"].items()
    ]


def as_the_server(settings: "Settings", command: Sequence[str], *, runs_here: bool) -> "Settings":
    """The settings of a server that `run` starts with `settings` and this command, here or elsewhere."""
    from trtllm_kvfix.overlay import launch, server_config  # noqa: PLC0415  a report without a command does without them
    from trtllm_kvfix.settings import as_variables, environment  # noqa: PLC0415

    if runs_here:
        launch.checked(command)
    server_config.refuse_absent(command)
    return server_config.settings_for(command, environment() | as_variables(settings))


@click.command(context_settings={"allow_interspersed_args": False})
@usage.json_option
@click.option("--verbose", is_flag=True, help="Show also why, fix by fix, the buffers that race, and the machine.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Examine the TensorRT-LLM in this folder without importing it: a checkout, or an unpacked wheel.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def doctor(settings: "Settings", as_json: bool, verbose: bool, source: Path | None, command: tuple[str, ...]) -> None:
    """Say whether TensorRT-LLM is hit here, by which hazards, what fixes them, and what to do.

    COMMAND may be the one that starts the server. It is not run. Its YAML file counts, as it will in the server: the
    section `kvfix:`, and the KV cache manager that it chooses. Servers that run already are another matter then, and
    not looked at. A file that cannot be read, or does not exist, is refused with exit code 2.

    The exit code is 1 if TensorRT-LLM is not installed here, the native extension is missing or unusable, a fix fails
    its self-test, a fix that this TensorRT-LLM needs would not reach a server that is started from here, a probe cannot
    decide whether a fix is needed, or another tool has displaced a fix in a server of this user that runs. A fix that
    settings switch off is your decision, which is shown and no problem.
    """
    if command:
        settings = as_the_server(settings, command, runs_here=source is None)
    report = examine(settings, source, command, also_running=not command)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        from trtllm_kvfix.tools.doctor.report import lines  # noqa: PLC0415  --json does without it

        click.echo("\n".join(lines(report, verbose=verbose)))
    sys.exit(1 if report["problems"] else 0)
