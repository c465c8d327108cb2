"""The tables of README and docs/support.md that come from code: what each release needs, what each fix finds in each
variant, the metrics, and which release is which variant.

    python -m tests.overlay.variant_table

prints them; a test compares them with the page.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache

from tests.overlay.upstream_double import ROOT
from tests.standin.fixture import STANDIN, VARIANTS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import releases

PROBE = """
import json
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import Settings
import tensorrt_llm
upstream = Upstream(may_import=True)
statuses = Registry(ALL).probe(Settings(), upstream).fixes
print(json.dumps([upstream.variant(), {each.id: each.answer.state.value for each in statuses}]))
"""
NEAREST = {"N": "D"}  # the stand-in has no N; its probes answer as for D
SHOWN = {"needed": "**needed**", "fixed-upstream": "fixed", "not-applicable": "-", "unknown": "unknown"}


@cache
def probed(variant: str) -> tuple[str, dict[str, str]]:
    """The variant as `doctor` would show it, and the state of each fix, seen in a fresh process."""
    path = os.pathsep.join(map(str, (STANDIN, STANDIN / "with_nixl", ROOT)))
    environ = {**os.environ, "STANDIN_VARIANT": variant, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, env=environ)
    shown, states = json.loads(done.stdout.splitlines()[-1])
    return shown, states


def table() -> str:
    columns = {variant: probed(variant)[1] for variant in VARIANTS}
    lines = [
        f"| fix | hazard | upstream | {' | '.join(columns)} |",
        "| --- | --- | --- |" + " --- |" * len(columns),
    ]
    for fix in ALL:
        cells = " | ".join(SHOWN[states[fix.id]] for states in columns.values())
        lines.append(f"| `{fix.id}` | {fix.hazard} | {linked(', '.join(fix.upstream)) or '-'} | {cells} |")
    return "\n".join(lines)


def linked(text: str) -> str:
    """References such as T#15546 as links, which each page defines at its end."""
    return re.sub(r"T#\d+", r"[\g<0>]", text)


def metrics_table() -> str:
    """Names as Prometheus shows them: a counter's ends with `_total`. The offload connector has a page of its own."""
    overlays = [each for each in counters.ALL if not each.name.startswith("offload_")]
    names = {each: each.name + ("_total" if each.kind == "counter" else "") for each in overlays}
    return "\n".join(
        ["| `trtllm_kvfix_...` | |", "| --- | --- |", *(f"| `{names[each]}` | {each.help} |" for each in names)]
    )


def releases_table() -> str:
    rows = (f"| {each.title} | {each.shown} | {linked(each.why)} |" for each in releases.KNOWN)
    return "\n".join(["| release | variant | inferred from |", "| --- | --- | --- |", *rows])


def needs_table() -> str:
    """A table of the fixes that each release needs. A row with two variants names what either needs; neighbours that
    need the same are one."""
    rows: list[tuple[str, str, str]] = []  # first and last release, needs
    for each in releases.KNOWN:
        needs = _needs(each.variants)
        if rows and rows[-1][2] == needs:
            rows[-1] = (rows[-1][0], each.last, needs)
        else:
            rows.append((each.first, each.last, needs))
    lines = [f"| {first if first == last else f'{first} to {last}'} | {needs} |" for first, last, needs in rows]
    return "\n".join(
        ["| I run release or wheel, or an image with this tag | affected by, and fixed by |", "| --- | --- |", *lines]
    )


def _needs(variants: tuple[str, ...]) -> str:
    known = {each if each in VARIANTS else NEAREST[each] for each in variants}
    needed = [fix for fix in ALL if any(probed(variant)[1][fix.id] == "needed" for variant in known)]
    return ", ".join(f"{fix.hazard} `{fix.id}`" for fix in sorted(needed, key=lambda fix: fix.hazard))


if __name__ == "__main__":
    sys.stdout.write(f"{needs_table()}\n\n{table()}\n\n{metrics_table()}\n\n{releases_table()}\n")
