"""`trtllm-kvfix run -- COMMAND`: set the environment, then become the command.

The hook reaches every Python that the command starts through PYTHONPATH (bootstrap/sitecustomize.py), and workers that
MPI spawns through an initializer (workers.py); so the environment's files stay as they are.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay.hook_file import hook_file
from trtllm_kvfix.settings import (
    ENV_ENABLED,
    ENV_FILE,
    ENV_JOB,
    ENV_PREFIX,
    Settings,
    as_variables,
    environment,
    load,
    variable_of,
)

BOOTSTRAP = Path(__file__).parent / "bootstrap"
PATH = "PYTHONPATH"
MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun")
# Flags that make Python ignore PYTHONPATH or `sitecustomize`, as letters and as they may be bundled ("-Im").
DEAF_FLAGS = "IES"
FLAGS_WITH_VALUE = "WX"


def variables(settings: Settings, environ: Mapping[str, str], job: str) -> dict[str, str]:
    """What a child process needs to have the fixes, to be added to `environ`."""
    others = [place for place in environ.get(PATH, "").split(os.pathsep) if place and place != str(BOOTSTRAP)]
    return {
        **as_variables(settings),
        ENV_ENABLED: "true",
        ENV_JOB: job,
        PATH: os.pathsep.join([str(BOOTSTRAP), *others]),
    }


def checked(command: Sequence[str]) -> list[str]:
    """The command line to run; raise SettingsError where the fixes would not reach it."""
    program = shutil.which(command[0])
    if program is None:
        raise SettingsError(f"command {command[0]!r} is not found in PATH; write the command after `--`")
    deaf = deaf_flag(command)
    if deaf is not None and "S" in deaf:
        raise SettingsError(f"{command[0]} {deaf} reads no site-packages, where every hook is: leave the flag out")
    if deaf is not None and not hook_file().exists():
        raise SettingsError(
            f"{command[0]} {deaf} ignores PYTHONPATH, through which `run` brings the fixes: leave the flag out, or "
            "install the hook with `trtllm-kvfix enable`"
        )
    return list(command)


def deaf_flag(command: Sequence[str]) -> str | None:
    """The first flag of `python ...` that keeps it from reading PYTHONPATH or `sitecustomize`."""
    if not Path(command[0]).name.startswith("python"):
        return None
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument in ("-", "-m", "-c", "--"):
            return None
        letters = argument[1:] if not argument.startswith("--") else ""
        own = next((at for at, letter in enumerate(letters) if letter in FLAGS_WITH_VALUE + "mc"), len(letters))
        if set(letters[:own]) & set(DEAF_FLAGS):
            return argument
        if letters[own:] and letters[own] in "mc":
            return None
        if letters[own:] in FLAGS_WITH_VALUE and letters[own:]:
            next(arguments, None)  # its value stands apart
    return None


def forwarding(command: Sequence[str], names: Sequence[str]) -> list[str]:
    """Open MPI hands other hosts only the variables that its command line names; other launchers hand on all."""
    if Path(command[0]).name not in MPI_LAUNCHERS or not _is_open_mpi(command[0]):
        return list(command)
    return [command[0], *(word for name in names for word in ("-x", name)), *command[1:]]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file with a section `kvfix:`."
)
@click.option("--fix", "fixes", multiple=True, metavar="ID=auto|on|off", help="What to do with one fix; repeatable.")
@click.option("--force", is_flag=True, help="Let `on` apply a fix whose probe cannot tell whether it fits.")
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics; rank r listens on this plus r.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    config: Path | None,
    fixes: tuple[str, ...],
    force: bool,
    metrics_port: int | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with the fixes: trtllm-serve, trtllm-bench, python, mpirun, trtllm-llmapi-launch."""
    environ = environment()
    config = config or (ctx.parent.params.get("config") if ctx.parent is not None else None)
    settings = load(config, {**environ, **_from_options(fixes, force, metrics_port)})
    if not settings.enabled:
        raise SettingsError(f"{ENV_ENABLED} or kvfix.enabled is false; `run` is for running with the fixes")
    new = variables(settings, environ, job=f"{os.uname().nodename}-{os.getpid()}")
    line = forwarding(checked(command), sorted(new))
    inherited = {
        name: value for name, value in environ.items() if not name.startswith(ENV_PREFIX) or name in (ENV_FILE, *new)
    }
    inherited.pop(ENV_FILE, None)  # what it says is in the variables, and other hosts may not have the file
    sys.stdout.flush()
    os.execvpe(line[0], line, {**inherited, **new})


def _from_options(fixes: Sequence[str], force: bool, metrics_port: int | None) -> dict[str, str]:
    given = {}
    for text in fixes:
        fix_id, equals, choice = text.partition("=")
        if not equals:
            raise SettingsError(f"--fix is {text!r}; write ID=auto, ID=on or ID=off")
        given[variable_of(("fixes", fix_id))] = choice
    if force:
        given[variable_of(("force",))] = "true"
    if metrics_port is not None:
        given[variable_of(("metrics_port",))] = str(metrics_port)
    return given


def _is_open_mpi(program: str) -> bool:
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return any(name in asked.stdout for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun"))
