"""`trtllm-kvfix status`: what runs in the processes of this user, from what they have attested."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from trtllm_kvfix.foreign_files import bytes_of
from trtllm_kvfix.metrics import flight
from trtllm_kvfix.offload import tier_report
from trtllm_kvfix.offload.worth import HitClass
from trtllm_kvfix.overlay.attest import live, live_of_other_versions
from trtllm_kvfix.overlay.fix import STATES
from trtllm_kvfix.overlay.recheck import EVERY_S
from trtllm_kvfix.plurals import number_of
from trtllm_kvfix.runtime_files import BYTES_MAX, Owner, folder_of, refuse_unreadable
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.sizes import bytes_text
from trtllm_kvfix.tools.hits import table_of_hits
from trtllm_kvfix.tools.terminal import terminal, wrapped

SILENT_S = 5 * EVERY_S


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the attestations as one JSON list.")
@click.option("--dump", is_flag=True, help="Print the flight records: the last decisions of each process, as JSON.")
@click.pass_obj
def status(settings: Settings, as_json: bool, dump: bool) -> None:
    """Show which fixes run in this user's processes, rank by rank, and the state of their host tiers."""
    folder = folder_of(settings)
    refuse_unreadable(folder)
    if dump:
        click.echo(json.dumps(flight_records(folder), indent=1))
        return
    entries, tiers, older = live(folder), tier_report.live(folder), live_of_other_versions(folder)
    if as_json:
        of_process = {tier["pid"]: {"offload": tier} for tier in tiers}
        click.echo(json.dumps([entry | of_process.get(entry["pid"], {}) for entry in entries], indent=2))
        return
    if entries:
        click.echo("\n".join([*(line for entry in entries for line in rank(entry)), *legend(entries)]))
    elif not older:
        click.echo(f"no process of this user runs TensorRT-LLM with the hook (looked in {folder})")
    for pid, version in older:
        click.echo(
            f"process {pid} runs with version {version} of this package, whose `status` shows more: restart the server"
        )
    if tiers:
        terminal().print(table_of_tiers(tiers))
    hits = [(str(tier["rank"]), HitClass(**each)) for tier in tiers for each in tier.get("hits", ())]
    if hits:
        terminal().print(table_of_hits("rank", hits))
    for entry in entries:
        for name, by in entry["displaced"].items():
            click.echo(f"rank {entry['rank']}: {name} is DISPLACED: calls come to {by}")
    for tier in tiers:
        if tier.get("remote"):
            click.echo(f"rank {tier['rank']}: remote tier {tier['remote']}")
        if tier.get("segment"):
            click.echo(f"rank {tier['rank']}: remote tier's segment {tier['segment']}")


def flight_records(folder: Path) -> list[dict[str, Any]]:
    """The flight records of all processes that have left one: those that run, and those that were killed."""
    records = []
    for file in sorted(folder.glob(f"*{flight.SUFFIX}")):
        owner = Owner.of(file, flight.SUFFIX)
        if owner is None:
            continue
        try:
            entries = flight.read(bytes_of(file, BYTES_MAX))
        except (OSError, ValueError) as error:
            records.append({**owner._asdict(), "error": str(error)})
            continue
        records.append({**owner._asdict(), "runs": owner.runs, "entries": entries})
    return records


def rank(entry: Mapping[str, Any]) -> Iterator[str]:
    """What runs there: its fixes by their state, as the log line of its start has them."""
    own_manager = "" if entry["manager"] == "upstream" else f", manager {entry['manager']}"
    trim = f", step-prologue trim {entry['prologue_trim']}" if entry["prologue_trim"] else ""
    yield from wrapped(
        f"rank {entry['rank']}/{entry['world_size']}, process {entry['pid']}, {engine(entry)}, variant "
        f"{entry['variant']}{own_manager}{trim}, job {entry['job']}"
    )
    for state in STATES:
        fixes = [fix_id for fix_id, found in entry["fixes"].items() if found == state]
        if fixes:
            yield from wrapped(f"{state}: {', '.join(fixes)}", 2)
    for fix_id, count in entry["faults"].items():
        first = entry["first_errors"].get(fix_id)
        yield from wrapped(f"{fix_id} had {number_of(count, 'fault')}, the first: {first}", 2)
    for canary in entry["canaries"]:
        yield from wrapped(f"canary: {heard(canary)}", 2)
    for alias in entry["aliases"]:
        yield from wrapped(f"alias, which still calls the original: {alias}", 2)


def heard(canary: Mapping[str, Any]) -> str:
    """What the canary of a rank has said."""
    if not canary["findings"]:
        return f"{canary['state']}, no finding"
    count = number_of(sum(canary["counts"].values()), "finding")
    return f"{canary['state']}, {count}, the first: {canary['findings'][0]['text']}"


def legend(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the states that are shown mean."""
    shown = {state for entry in entries for state in entry["fixes"].values()}
    yield ""
    for state, means in STATES.items():
        if state in shown:
            yield from wrapped(f"{state}: {means}")


def engine(entry: Mapping[str, Any]) -> str:
    """An engine looks at its fixes every few seconds; one that is stopped, or stuck, does not."""
    if not entry["started"]:
        return "no engine"
    if not entry["enabled"]:
        return "engine started WITHOUT the fixes"
    silent = f", silent for {entry['age_s']:.0f} s" if entry["age_s"] > SILENT_S else ""
    return f"engine started{silent}"


def table_of_tiers(tiers: list[dict[str, Any]]) -> Table:
    shown = Table(box=None, title="host tiers of the offload connector", title_justify="left")
    for column in ("rank", "pid", "blocks", "requested", "mapped", "pinned", "failed", "first error"):
        shown.add_column(column, overflow="fold")
    for tier in tiers:
        sizes = (bytes_text(tier[f"{kind}_bytes"]) for kind in ("requested", "mapped", "pinned"))
        counts = (str(tier[name]) for name in ("rank", "pid", "slots"))
        shown.add_row(*counts, *sizes, str(tier["transfers_failed"]), tier["first_error"] or "-")
    return shown
