"""`trtllm-kvfix reproduce`: prints or runs the script of a hazard, which needs nothing of this package.

The script is the hazard's reproducer as one file, with what it takes from other modules of ours written out. People
attach it to an issue of TensorRT-LLM, so it has to run where this package is not.
"""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeGuard

import click

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.hazards import table
from trtllm_kvfix.tools.interrupts import deaf_to_interrupts

OURS = f"{__name__.partition('.')[0]}."
EXIT_CODES = "Exit code: 1 the hazard shows, 0 it does not, 2 it cannot be looked at here, or the control is wrong.\n"
ERRORS_END_WITH_2 = """sys.excepthook = lambda kind, error, trace: (  # it is no hazard, which would end with 1
    print(f"cannot be tested here: {error}") if kind is ModuleNotFoundError else sys.__excepthook__(kind, error, trace),
    sys.exit(2),
)
"""
# By name: a hazard's, and for a second script of its room what that is about.
SCRIPTS = {
    hazard.id + path.stem.removeprefix("reproducer").replace("_", "-").upper(): path
    for hazard in table.HAZARDS
    for path in sorted(Path(table.__file__).with_name(hazard.room).glob("reproducer*.py"))
}


def _one_with_a_script(_context: click.Context, _parameter: click.Parameter, which: str | None) -> str | None:
    """As the table writes it. Pages name hazards that no script shows, so click's own words would mislead."""
    if which is None or which.upper() in SCRIPTS:
        return which and which.upper()
    raise SettingsError(f"there is no script for '{which}'; there is one for {', '.join(SCRIPTS)}")


@click.command()
@click.argument("which", metavar="[HAZARD]", required=False, callback=_one_with_a_script)
@click.option("--script", is_flag=True, help="Print the script and run nothing.")
def reproduce(which: str | None, script: bool) -> None:
    """Show a hazard on what is installed here, by a script of at most 200 lines that does not know this package.

    HAZARD is H1 to H10, H8-V2, H13 or H17; without it, the command lists them. No script needs a model. Most need a
    GPU, torch and TensorRT-LLM; its first lines say what a script needs, what it shows, and what its control is.

    The exit code is the script's: 1 if the hazard shows, 0 if it does not, 2 if it cannot be tested here, because
    something is missing or fails, or the control is wrong.
    """
    if which is None:
        if script:
            raise SettingsError(f"--script prints the script of one hazard; name it: {', '.join(SCRIPTS)}")
        for name in SCRIPTS:
            click.echo(f"{name}  {shown(name)}")
        return
    if script:
        click.echo(script_of(which), nl=False)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{which.lower()}.py"
        path.write_text(script_of(which), encoding="utf-8")
        sys.exit(_status_of([sys.executable, str(path)]))


def _status_of(command: list[str]) -> int:
    with deaf_to_interrupts():
        script = subprocess.Popen(command)
    try:
        status = script.wait()
    finally:
        script.kill()  # where ctrl-C has ended the wait
        script.wait()
    if status >= 0:
        return status
    click.echo(f"cannot be tested here: the script was ended by {signal.Signals(-status).name}", err=True)
    return SettingsError.exit_code


def shown(name: str) -> str:
    """The first line of the script, without its name."""
    said = ast.get_docstring(ast.parse(script_of(name))) or ""
    return said.partition("\n")[0].removeprefix(f"{name}: ")


# ---- the script ----


def script_of(name: str) -> str:
    """With what all scripts say: their exit codes, and before anything can fail, that an error is no hazard."""
    whole = _whole(SCRIPTS[name])
    said, code = whole.split('"""\n\n', 1)
    imports, rest = code.split("\n\n", 1)
    return f'{said}{EXIT_CODES}"""\n\n{imports}\n\n{ERRORS_END_WITH_2}\n{rest}'


def _whole(reproducer: Path) -> str:
    """What it imports from us stands where the imports were, which come one behind the other."""
    lines, statements = _parsed(reproducer)
    imports = [each for each in statements if _is_ours(each)]
    if not imports:
        return "".join(lines)
    known = {line for each in statements for line in _pieces(lines, each)}
    pieces = [each for each in dict.fromkeys(_needed_for(imports)) if each not in known]
    modules = sorted(each for each in pieces if each.startswith(("from ", "import ")))
    bodies = [each for each in pieces if each.startswith(("class ", "def "))]
    constants = [each for each in pieces if each not in modules and each not in bodies]
    head = "".join((*lines[: imports[0].lineno - 1], *modules, "\n", *constants))
    return "\n\n".join((head, *bodies, "".join(lines[imports[-1].end_lineno :]).lstrip("\n")))


def _needed_for(imports: list[ast.ImportFrom]) -> Iterator[str]:
    """The statements that these imports stand for, and those that they need, as a module has them."""
    for each in imports:
        spec = find_spec(each.module or "")
        assert spec is not None and spec.origin is not None, f"{each.module} is one of ours"
        lines, statements = _parsed(Path(spec.origin))
        names, needed = _defined(each), set[ast.stmt]()
        while more := {one for one in statements if one not in needed and names & _defined(one)}:
            needed |= more
            names |= {node.id for one in more for node in ast.walk(one) if isinstance(node, ast.Name)}
        yield from _needed_for([one for one in statements if one in needed and _is_ours(one)])
        for one in statements:
            if one in needed and not _is_ours(one):
                yield from _pieces(lines, one, names)


def _pieces(lines: list[str], statement: ast.stmt, names: set[str] | None = None) -> list[str]:
    """The statement as it stands there, or one import for each name. `names`: those that are of interest."""
    if not isinstance(statement, ast.ImportFrom):
        # Whole lines, so with a comment that stands behind it.
        return ["".join(lines[statement.lineno - 1 : statement.end_lineno])]
    of_module = (alias.name for alias in statement.names if names is None or alias.name in names)
    return [f"from {statement.module} import {name}\n" for name in of_module]


def _parsed(path: Path) -> tuple[list[str], list[ast.stmt]]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines(keepends=True), ast.parse(text).body


def _is_ours(statement: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    return isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(OURS)


def _defined(statement: ast.stmt) -> set[str]:
    """The names that other statements know it by."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name for alias in statement.names}
        case ast.FunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Assign():
            stored = (node for target in statement.targets for node in ast.walk(target))
            return {node.id for node in stored if isinstance(node, ast.Name)}
    return set()
