"""`trtllm-kvfix doctor`: what is installed here, and whether the native extension works."""

import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from trtllm_kvfix import __version__
from trtllm_kvfix.errors import ExtensionMissing

OPTIONAL = ("matplotlib", "tensorrt_llm", "torch")


def examine() -> dict[str, Any]:
    """The report as plain values. Optional packages are looked up by their metadata, never imported."""
    report: dict[str, Any] = {
        "package": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "numpy": installed("numpy"),
        "optional": {name: installed(name) for name in OPTIONAL},
        "extension": None,
        "problems": [],
    }
    try:
        from trtllm_kvfix import native  # noqa: PLC0415  a missing extension is a finding here, not a failed import

        report["extension"] = native.build_info()
    except ExtensionMissing as error:
        report["problems"].append(str(error))
    else:
        if report["extension"]["locks"] != "yes":
            report["problems"].append("the extension was built without its lock (KVFIX_NO_LOCK): rebuild it before use")
    return report


def installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def doctor(as_json: bool) -> None:
    """Say what is installed here; exit with 1 when the native extension is missing or unfit for use."""
    report = examine()
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(report)
    sys.exit(1 if report["problems"] else 0)


def show(report: Mapping[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415  --json does without it
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, show_header=False)
    for key in ("package", "python", "platform", "numpy"):
        table.add_row(key, report[key] or "not installed")
    for key, value in (report["extension"] or {"extension": "missing"}).items():
        table.add_row(key if report["extension"] is None else f"extension {key}", value)
    for key, value in report["optional"].items():
        table.add_row(f"optional {key}", value or "not installed")
    console = Console()
    console.print(table)
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="bold", markup=False)
