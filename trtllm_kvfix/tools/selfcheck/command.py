"""`trtllm-kvfix selfcheck`: what the fixes do to the TensorRT-LLM that is installed here."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from trtllm_kvfix import usage
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.overlay.upstream import PACKAGE, exists
from trtllm_kvfix.tools.progress import progress_bar
from trtllm_kvfix.tools.selfcheck import report, steps
from trtllm_kvfix.tools.terminal import terminal
from trtllm_kvfix.written import check_folder, write

STEP_S_MAX = 300.0


class NothingToCheck(KvfixError):
    """There is no TensorRT-LLM in this Python."""


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trtllm-kvfix-selfcheck.json"),
    show_default=True,
    help="File for the report.",
)
@click.option(
    "--step-timeout",
    "limit_s",
    type=usage.Real(1, 86400),
    default=STEP_S_MAX,
    show_default=True,
    help="Seconds that a step may take. The first includes the import of TensorRT-LLM.",
)
def selfcheck(out: Path, limit_s: float) -> None:
    """Try every fix on the classes of the installed TensorRT-LLM, without a model, and write a report to share.

    The command imports TensorRT-LLM in processes of its own, asks the probes, applies each fix and takes it off, and
    runs its self-test. Then it plays small scenarios with TensorRT-LLM's own managers on the GPU: without the fixes,
    with the fix that the scenario is about, and with all. The report has no paths and no names of machines or users.

    The exit code is 1 if something is wrong or could not be shown, 2 if the report cannot be written.
    """
    if not exists(PACKAGE):
        raise NothingToCheck(
            f"TensorRT-LLM is not installed in this Python ({sys.executable}); run selfcheck with the Python of the "
            "server: `/path/to/python -m trtllm_kvfix selfcheck`"
        )
    check_folder("--out", out)
    names = steps.names()
    with progress_bar("selfcheck", len(names)) as ended:
        outcomes = steps.run(names, limit_s=limit_s, ended=ended)
    found = report.compose(outcomes)
    show(found)
    write("--out", out, lambda: json.dumps(found, indent=2) + "\n")
    sys.exit(1 if found["problems"] else 0)


def show(found: Mapping[str, Any]) -> None:
    console = terminal()
    upstream = found["tensorrt_llm"]
    console.print(f"TensorRT-LLM {upstream['version'] or 'of unknown version'}, variant {upstream['variant']}")
    for part, columns in (
        ("fixes", {"fix": "id", "state": "state", "self-test": "self_test", "applied and taken off": "replaced"}),
        ("scenarios", {"scenario": "name", "fix": "fix", "verdict": "verdict", "why": "why"}),
    ):
        table = Table(box=None)
        for heading in columns:
            table.add_column(heading, overflow="fold")
        for row in found[part]:
            table.add_row(*(row[key] for key in columns.values()))
        console.print(table)
    for problem in found["problems"]:
        console.print(f"problem: {problem}", style="bold", markup=False, soft_wrap=True)
