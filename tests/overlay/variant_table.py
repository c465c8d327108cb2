"""The tables of README and docs/support.md that come from code: what hits each release, what each fix finds in each
variant, the metrics, and which release is which variant.

    python -m tests.overlay.variant_table

prints them; a test compares them with the page.
"""

import json
import os
import re
import sys
from functools import cache
from typing import NamedTuple

from tests import fresh
from tests.overlay.upstream_double import ROOT
from tests.standin.fixture import STANDIN, VARIANTS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import releases
from trtllm_kvfix.overlay.fix import Manager

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
NEAREST = {"N": "D"}  # the stand-in has no N; its probes answer as for D, but for this fix, whose seams N's source has
IN_N = {"connector-prefixes"}
SHOWN = {"needed": "**needed**", "fixed-upstream": "fixed", "not-applicable": "-", "unknown": "unknown"}


@cache
def probed(variant: str) -> tuple[str, dict[str, str]]:
    """The variant as `doctor` would show it, and the state of each fix, seen in a fresh process."""
    path = os.pathsep.join(map(str, (STANDIN, STANDIN / "with_nixl", ROOT)))
    environ = {**os.environ, "STANDIN_VARIANT": variant, "PYTHONPATH": path}
    done = fresh.run([sys.executable, "-c", PROBE], env=environ)
    assert done.returncode == 0, done.stderr
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


class Run(NamedTuple):
    """Releases that people run: what they call them, the first and the last, and the manager that is the default."""

    said: str
    first: str
    last: str
    default: str


# A line of releases, or what a release of Dynamo pins; the newest first.
RUN = (
    Run("1.4.0rc1 to rc4", "1.4.0rc1", "1.4.0rc4", "**V2**"),
    Run("1.3.0rc22 to rc25; Dynamo 1.4, 1.5", "1.3.0rc22", "1.3.0rc25", "the model chooses"),
    Run("1.3.0rc19; Dynamo 1.3", "1.3.0rc19", "1.3.0rc19", "V1"),
    Run("1.3.0rc14; Dynamo 1.2", "1.3.0rc14", "1.3.0rc14", "V1"),
    Run("1.3.0rc11; Dynamo 1.1", "1.3.0rc11", "1.3.0rc11", "V1"),
    Run("1.3.0rc1 to rc5; Dynamo 0.9, 1.0", "1.3.0rc1", "1.3.0rc5.post1", "V1"),
    Run("1.2.1", "1.2.1", "1.2.1", "V1"),
    Run("1.2.0; Dynamo 0.7, 0.8", "1.2.0rc2", "1.2.0", "V1"),
    Run("1.1; Dynamo 0.6", "1.1.0rc5", "1.1.0", "V1"),
)
# The first releases with a fix of upstream's own, as its pull requests say, one for each line of releases.
UPSTREAM_SINCE = {
    "staged-offsets-v1": ("1.3.0rc21",),
    "computed-blocks": ("1.2.1", "1.3.0rc5.post2", "1.3.0rc11"),
    "partial-copies": ("1.3.0rc13",),
    "batched-admission": ("1.3.0rc13",),
    "concurrent-pins": ("1.3.0rc21",),
    "input-copy-fence": ("1.3.0rc15",),
}


def has_upstreams(fix_id: str, version: str) -> bool:
    """Whether the release has upstream's own fix."""
    key = releases.key_of(version) or ()
    # A post-release has what was brought into it alone; the release candidates behind it may lack that.
    candidate, _, _ = version.partition(".post")
    first = [each for each in UPSTREAM_SINCE.get(fix_id, ())
             if ".post" not in each or each.startswith(f"{candidate}.post")]  # fmt: skip
    since = [releases.key_of(each) or () for each in first]
    same_line = [each for each in since if each[:2] == key[:2]]
    return any(each <= key for each in same_line or since)


def hits_table() -> str:
    """What hits each release: a row with two variants has what hits either. H8* is H8 with a connector."""
    rows = (f"| {run.said} | {run.default} | {_hits(run, 'V1')} | {_hits(run, 'V2')} |" for run in RUN)
    return "\n".join(["| I run | default manager | V1 is hit by | V2 is hit by |", "| --- | --- | --- | --- |", *rows])


def _hits(run: Run, manager: Manager) -> str:
    named = {name for version in (run.first, run.last) for name in _variants(version)}
    variants = {NEAREST.get(name, name) for name in named}
    if manager == "V2" and all(probed(name)[1]["staged-offsets-v2"] == "not-applicable" for name in variants):
        return "not there"
    hits = {}
    for fix in sorted(ALL, key=lambda fix: int(fix.hazard[1:])):
        needed = fix.only_for in (None, manager) and any(probed(name)[1][fix.id] == "needed" for name in variants)
        if fix.only_for == manager and fix.id in IN_N and "N" in named:
            hits[fix.hazard] = f"{fix.hazard}*"
        elif needed and not has_upstreams(fix.id, run.last):
            hits[fix.hazard] = fix.hazard
        elif needed and fix.id == "computed-blocks":
            hits[fix.hazard] = "H8*"  # upstream's own fix counts what is still being loaded
    return ", ".join(hits.values())


def _variants(version: str) -> tuple[str, ...]:
    row = releases.of(version)
    if row is None:
        raise LookupError(f"{version} is no release of releases.KNOWN")
    return row.variants


if __name__ == "__main__":
    sys.stdout.write(f"{hits_table()}\n\n{table()}\n\n{metrics_table()}\n\n{releases_table()}\n")
