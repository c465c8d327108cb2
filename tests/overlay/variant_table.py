"""The tables of docs/support.md that come from code: what each fix finds in each variant, the metrics,
and which release is which variant.

    python -m tests.overlay.variant_table

prints them; a test compares them with the page.
"""

import json
import os
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
        lines.append(f"| `{fix.id}` | {fix.hazard} | {', '.join(fix.upstream) or '-'} | {cells} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """Names as Prometheus shows them: a counter's ends with `_total`. The offload connector has a page of its own."""
    overlays = [each for each in counters.ALL if not each.name.startswith("offload_")]
    names = {each: each.name + ("_total" if each.kind == "counter" else "") for each in overlays}
    return "\n".join(
        ["| `trtllm_kvfix_...` | |", "| --- | --- |", *(f"| `{names[each]}` | {each.help} |" for each in names)]
    )


def releases_table() -> str:
    rows = (f"| {each.title} | {each.shown} | {each.why} |" for each in releases.KNOWN)
    return "\n".join(["| release | variant | inferred from |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n\n{metrics_table()}\n\n{releases_table()}\n")
