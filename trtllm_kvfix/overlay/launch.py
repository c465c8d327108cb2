"""`trtllm-kvfix run -- COMMAND`: set the environment, then become the command.

The hook reaches every Python that the command starts through PYTHONPATH (bootstrap/sitecustomize.py), and workers that
MPI spawns through an initializer (child_environment.py); so the environment's files stay as they are.
"""

import difflib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, get_args

import click

from trtllm_kvfix import usage
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.log import described
from trtllm_kvfix.overlay import hook_loss, server_config, watcher
from trtllm_kvfix.overlay.hook_file import hook_file
from trtllm_kvfix.overlay.hook_loss import BOOTSTRAP, PATH
from trtllm_kvfix.settings import (
    ENV_ENABLED,
    ENV_FILE,
    ENV_JOB,
    ENV_PREFIX,
    SECTION,
    Settings,
    Word,
    as_variables,
    environment,
    fix_ids,
    load,
    switched_off,
    variable_of,
)

IDS = fix_ids()
# `doctor` in a process of its own, which does not take packages from the folder that the command starts in.
DOCTOR = "import sys; sys.path[:1] = filter(None, sys.path[:1]); from trtllm_kvfix.__main__ import main; main()"
MPI_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun")


def variables(settings: Settings, environ: Mapping[str, str], job: str) -> dict[str, str]:
    """The variables that bring the fixes to a child process, to be added to `environ`."""
    return {**as_variables(settings), ENV_ENABLED: "true", ENV_JOB: job, PATH: path_with_hook(environ)}


def path_with_hook(environ: Mapping[str, str]) -> str:
    theirs = environ.get(PATH, "")
    # An empty name is the working folder to Python, but a list that is empty as a whole is not.
    others = [place for place in theirs.split(os.pathsep) if place != str(BOOTSTRAP)] if theirs else []
    return os.pathsep.join([str(BOOTSTRAP), *others])


def checked(command: Sequence[str]) -> list[str]:
    """The command line to run; raise SettingsError where the fixes would not reach it."""
    refuse_missing(command)
    is_hooked = hook_file().is_file()
    if os.pathsep in str(BOOTSTRAP) and not is_hooked:
        raise SettingsError(
            f"this package's folder '{BOOTSTRAP}' has a colon, which ends a name in {PATH}: install the package "
            "in another folder, or the hook with `trtllm-kvfix enable`"
        )
    found = hook_loss.first_deaf(command)
    if found is not None and (found.has_no_site or not is_hooked):
        otherwise = "" if found.has_no_site else ", or install the hook with `trtllm-kvfix enable`"
        raise SettingsError(f"{found.what} {found.why}: {found.remedy}{otherwise}")
    return list(command)


def refuse_missing(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise SettingsError(f"command {command[0]!r} {why_not_found(command[0])}")


def why_not_found(program: str) -> str:
    """A program with a slash in its name is not looked for in PATH."""
    if os.sep not in program:
        return "is not found in PATH; usual cause: it is installed in another environment"
    try:
        mode = Path(program).stat().st_mode
    except FileNotFoundError:
        return f"does not exist (the folder is {Path.cwd()})"
    except OSError as error:
        return f"cannot be found: {error.strerror}"
    return "is a folder" if stat.S_ISDIR(mode) else f"is not executable; usual cause: chmod +x {program} is missing"


def forwarding(command: Sequence[str], exported: Sequence[str]) -> list[str]:
    """Open MPI passes to other hosts only the variables that its command line names; other launchers pass all."""
    if Path(command[0]).name not in MPI_LAUNCHERS or not _is_open_mpi(command[0]):
        return list(command)
    return [command[0], *(word for name in exported for word in ("-x", name)), *command[1:]]


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML file with a section `kvfix:`."
)
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="ID=auto|on|observe|off",
    shell_complete=usage.one_of(f"{fix_id}={word}" for fix_id in IDS for word in get_args(Word)),
    help="Switch a fix on or off, or only observe; repeatable.",
)
@click.option("--force", is_flag=True, help="Let `on` apply a fix even if its probe cannot tell whether it fits.")
@click.option("--dry-run", is_flag=True, help="Print what would be set and started, and start nothing.")
@click.option(
    "--manager",
    type=click.Choice(["upstream", "native"]),
    help="Which block manager serves: see docs/native-manager.md.",
)
@click.option("--canary", is_flag=True, help="Say when a cached block has changed.")
@click.option(
    "--strict",
    is_flag=True,
    help="Start nothing that would lack a fix which it needs and nobody has switched off or set to observe.",
)
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics; rank r listens on this port plus r.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    config: Path | None,
    fixes: tuple[str, ...],
    force: bool,
    dry_run: bool,
    manager: str | None,
    canary: bool,
    strict: bool,
    metrics_port: int | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with the fixes: trtllm-serve, trtllm-bench, python, mpirun, trtllm-llmapi-launch.

    With TRTLLM_KVFIX_ENABLED=false, COMMAND runs without them, even if settings files or other TRTLLM_KVFIX_ variables
    are wrong. Unknown options are still refused.
    """
    environ = environment()
    config = config or (ctx.parent.params.get("config") if ctx.parent is not None else None)
    # What is said here of where a server without fixes can be asked is as good as settings of the environment.
    said = {} if config is None else {ENV_FILE: str(config.absolute())}
    if metrics_port is not None:
        said[variable_of(("metrics_port",))] = str(metrics_port)
    if switched_off(environ):
        start_without(command, environ, said, dry_run=dry_run)
        return
    settings = load(config, environ, options=_from_options(fixes, force, manager, canary, metrics_port))
    if not settings.enabled:
        start_without(command, environ, said, dry_run=dry_run)
        return
    new = variables(settings, environ, job=f"{os.uname().nodename}-{os.getpid()}")
    line = forwarding(checked(command), sorted(new))
    for doubt in hook_loss.doubts(command) if not hook_file().is_file() else ():
        if strict:
            raise SettingsError(f"--strict: {doubt}. Install the hook with `trtllm-kvfix enable`, or mend that line")
        tell(f"warning: {doubt}. If it is the server's, it starts WITHOUT the fixes")
    inherited = {
        name: value for name, value in environ.items() if not name.startswith(ENV_PREFIX) or name in (ENV_FILE, *new)
    }
    inherited.pop(ENV_FILE, None)  # its settings are in the variables, and other hosts may not have the file
    sections = server_config.check(command, {**inherited, **new})
    if dry_run:
        click.echo("".join(f"{line}\n" for line in sections), nl=False, err=True)
        show(line, new)
        return
    if strict:
        refuse_unprotected(command, {**inherited, **new})
    leave_watcher(new[ENV_JOB], inherited)
    become(line, {**inherited, **new})


def refuse_unprotected(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Ask `doctor`, which imports TensorRT-LLM. What it shows goes to standard error, as the command's own output may
    be read by a program."""
    asked = [sys.executable, "-c", DOCTOR, "doctor", "--", *command]
    if subprocess.run(asked, env=environ, stdout=sys.stderr.fileno(), check=False).returncode:
        raise KvfixError(
            f"--strict: nothing is started, because `doctor` has found what it says above; {ENV_ENABLED}=false starts "
            f"{command[0]} without the fixes"
        )


def leave_watcher(job: str, environ: Mapping[str, str]) -> None:
    others = {name: value for name, value in environ.items() if not name.startswith(ENV_PREFIX)}
    try:
        watcher.start(ENV_JOB, job, others)
    except (OSError, AttributeError) as error:  # an old kernel, or a sandbox without /proc
        tell(f"nothing watches whether the fixes reach the server, see `trtllm-kvfix status`: {described(error)}")


def start_without(
    command: Sequence[str], environ: Mapping[str, str], said: Mapping[str, str], *, dry_run: bool
) -> None:
    """Start the command without the fixes. The hook goes with it: it takes the section `kvfix:`, which TensorRT-LLM
    would refuse, out of the server's configuration, and answers on the port of metrics."""
    refuse_missing(command)
    tell(f"{ENV_ENABLED} or kvfix.enabled is false: {command[0]} starts WITHOUT the fixes")
    try:
        checked(command)
    except SettingsError as error:
        tell(f"a section `{SECTION}:` stays in its configuration: {error}")
    new = {**said, ENV_ENABLED: "false", PATH: path_with_hook(environ)}
    line = forwarding(command, sorted(new))
    if dry_run:
        show(line, new)
        return
    become(line, {**environ, **new})


def tell(text: str) -> None:
    click.echo(f"[trtllm-kvfix] {text}", err=True)


def show(line: Sequence[str], new: Mapping[str, str]) -> None:
    click.echo("".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(new.items())), nl=False)
    click.echo(shlex.join(line))


def become(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the command with exec. Python ignores two signals from its start on, and the command would inherit
    that."""
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise SettingsError(
            f"command {command[0]!r} cannot be run: {error.strerror}; usual causes: a script without a first line such "
            "as #!/bin/sh, or a program for another machine"
        ) from error


def _from_options(
    fixes: Sequence[str], force: bool, manager: str | None, canary: bool, metrics_port: int | None
) -> dict[str, tuple[str, str]]:
    """Return, for each variable, its option as errors name it, and its value."""
    given = {}
    for text in fixes:
        fix_id, equals, choice = text.partition("=")
        if not equals:
            raise SettingsError(f"--fix is {text!r}; write ID=auto, ID=on, ID=observe or ID=off")
        if fix_id not in IDS:
            near = difflib.get_close_matches(fix_id, IDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(IDS)}"
            raise SettingsError(f"--fix names {fix_id!r}, which is not a fix; {hint}")
        given[variable_of(("fixes", fix_id))] = (f"--fix {fix_id}", choice)
    if force:
        given[variable_of(("force",))] = ("--force", "true")
    if manager is not None:
        given[variable_of(("manager",))] = ("--manager", manager)
    if canary:
        given[variable_of(("canary",))] = ("--canary", "observe")
    if metrics_port is not None:
        given[variable_of(("metrics_port",))] = ("--metrics-port", str(metrics_port))
    return given


def _is_open_mpi(program: str) -> bool:
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return any(name in asked.stdout for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun"))
