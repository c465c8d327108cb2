"""`trtllm-kvfix reproduce`: prints or runs the script of a hazard, which needs nothing of this package."""

import ast
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from trtllm_kvfix import usage
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.hazards import table
from trtllm_kvfix.hazards.hazard import Hazard

IDS = tuple(hazard.id for hazard in table.HAZARDS)


@click.command()
@click.argument("which", metavar="[HAZARD]", required=False, shell_complete=usage.one_of(IDS))
@click.option("--script", is_flag=True, help="Print the script and run nothing.")
def reproduce(which: str | None, script: bool) -> None:
    """Show a hazard on what is installed here, by a script of at most 160 lines that does not know this package.

    HAZARD is H1 to H9; without it, the command lists them. No script needs a model. Most need a GPU, torch and
    TensorRT-LLM; its first lines say what a script needs, what it shows, and what its control is.

    The exit code is the script's: 1 if the hazard shows, 0 if it does not, 2 if it cannot be tested here, because
    something is missing or fails, or the control is wrong.
    """
    if which is None:
        if script:
            raise SettingsError(f"--script prints the script of one hazard; name it: {', '.join(IDS)}")
        for hazard in table.HAZARDS:
            click.echo(f"{hazard.id}  {shown(hazard)}")
        return
    hazard = _hazard(which)
    if script:
        click.echo(table.script_of(hazard), nl=False)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{hazard.id.lower()}.py"
        path.write_text(table.script_of(hazard), encoding="utf-8")
        sys.exit(subprocess.run([sys.executable, str(path)], check=False).returncode)


def shown(hazard: Hazard) -> str:
    """The first line of the script, without the hazard's name."""
    said = ast.get_docstring(ast.parse(table.script_of(hazard))) or ""
    return said.partition("\n")[0].removeprefix(f"{hazard.id}: ")


def _hazard(name: str) -> Hazard:
    for hazard in table.HAZARDS:
        if hazard.id == name.upper():
            return hazard
    raise SettingsError(f"HAZARD is '{name}', which is not known; known are {', '.join(IDS)}")
