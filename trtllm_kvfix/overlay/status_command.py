"""`trtllm-kvfix status`: what runs in the processes of this user, from what they have attested."""

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from trtllm_kvfix.overlay.attest import live
from trtllm_kvfix.settings import load, runtime_dir


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the attestations as one JSON list.")
def status(as_json: bool) -> None:
    """Say which fixes run in this user's processes, rank by rank."""
    entries = live(runtime_dir(load()))
    if as_json:
        click.echo(json.dumps(entries, indent=2))
    elif not entries:
        click.echo("no process of this user runs TensorRT-LLM with the hook")
    else:
        Console().print(table(entries))


def table(entries: list[dict[str, Any]]) -> Table:
    shown = Table(box=None)
    for column in ("job", "rank", "pid", "engine", "variant", "fixes", "aliases"):
        shown.add_column(column, overflow="fold")
    for entry in entries:
        shown.add_row(
            entry["job"],
            f"{entry['rank']}/{entry['world_size']}",
            str(entry["pid"]),
            "started" if entry["started"] else "-",
            entry["variant"],
            "\n".join(f"{fix_id}: {word}" for fix_id, word in entry["fixes"].items()),
            "\n".join(entry["aliases"]),
        )
    return shown
