"""What `doctor` says first: whether the server is hit, by what, and what to do. Nothing is examined here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.prologue_trim import VARIABLE
from trtllm_kvfix.plurals import form, listed, number_of
from trtllm_kvfix.settings import ENV_ENABLED
from trtllm_kvfix.tools.doctor.findings import HOLDS, Lack
from trtllm_kvfix.tools.terminal import wrapped

LINES_MAX = 10  # after the verdict
INDENT = 2
UNKNOWN = "unknown"  # a variant
NOT_FIXED, PARTLY_FIXED = "NOT FIXED", "PARTLY FIXED"
MORE = "Facts, reasons and buffers: trtllm-kvfix doctor --verbose"


def answer(report: Mapping[str, Any], *, verbose: bool) -> list[str]:
    """The verdict and what to do, as lines."""
    paragraphs = list(_advice(report))
    advice = [line for each in paragraphs for line in wrapped(each, INDENT)] if verbose else _fitting(paragraphs)
    return [*wrapped(verdict(report)), *advice]


def verdict(report: Mapping[str, Any]) -> str:
    overlay = report["overlay"]
    if overlay is None:
        return "CANNOT TELL: trtllm-kvfix itself does not work here."
    if not overlay["installed"]:
        return "CANNOT TELL: TensorRT-LLM is not installed in this Python."
    if overlay["manager"] is None:
        return "CANNOT TELL: TensorRT-LLM cannot be imported here."
    manager = overlay["manager"]["said"]
    well = "" if report["problems"] else ", nothing is missing"
    hits = _hits(overlay)
    if not hits:
        if _lacking(overlay, Lack.UNDECIDED) or overlay["variant"] == UNKNOWN:
            return f"CANNOT TELL: {manager}, and no probe knows this TensorRT-LLM."
        return f"NOT HIT{well}: {manager}, no hazard that a fix ends."
    by = listed(dict.fromkeys(fix["hazard"] for fix in hits))
    fixes = listed(fix["id"] for fix in hits)
    standing = _standing(report)
    if well and standing in (NOT_FIXED, PARTLY_FIXED):
        well = ", by your settings"
    return f"{standing}{well}: {manager}, hit by {by}; {fixes} {form(len(hits), 'fixes it', 'fix them')}."


def _hits(overlay: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    hits = [fix for fix in overlay["fixes"] if fix["state"] == State.NEEDED.value and fix["matters"]]
    return sorted(hits, key=lambda fix: str(fix["hazard"]))


def _lacking(overlay: Mapping[str, Any], lack: Lack) -> list[str]:
    return [fix["id"] for fix in overlay["fixes"] if fix["lack"] == lack.value]


def _standing(report: Mapping[str, Any]) -> str:
    overlay = report["overlay"]
    if overlay["hook"] == "source":
        return "HIT"
    hits = _hits(overlay)
    fixed = [
        fix["id"]
        for fix in hits
        if fix["lack"] is None and fix["choice"] != "observe" and overlay["self_tests"][fix["id"]] == HOLDS
    ]
    if not fixed:
        return NOT_FIXED
    whole = len(fixed) == len(hits) and not _lacking(overlay, Lack.UNDECIDED) and not report["displaced"]
    return "FIXED" if whole else PARTLY_FIXED


def _advice(report: Mapping[str, Any]) -> Iterator[str]:
    overlay = report["overlay"]
    if overlay is not None and overlay["manager"] is not None:
        yield build(overlay)
        if overlay["host_offload"]:
            yield f"warning: {overlay['host_offload']}"
        yield from _advice_on_fixes(report)
    lacking = [] if overlay is None else overlay["lacking"]
    yield from (f"problem: {problem}" for problem in report["problems"] if problem not in lacking)
    if report["kernels_missing"] is not None:
        yield f"slower than it could be: {report['kernels_missing']}"


def build(overlay: Mapping[str, Any]) -> str:
    version = overlay["version"] or "of unknown version"
    release = overlay["release"]
    number = "" if release is None else f" (by its number {' or '.join(release['variants'])})"
    how = "read, not imported" if overlay["hook"] == "source" else f"hook: {overlay['hook']}"
    trim = f"; step-prologue trim: {overlay['prologue_trim']}" if overlay["prologue_trim"] else ""
    return f"TensorRT-LLM {version}, variant {overlay['variant']}{number}{trim}; {how}"


def _advice_on_running(count: int) -> Iterator[str]:
    if count:
        yield (
            f"{number_of(count, 'process', 'processes')} of yours {form(count, 'runs', 'run')} with fixes already "
            "(trtllm-kvfix status); this is about a server that is started from here"
        )


def _advice_on_trim(overlay: Mapping[str, Any]) -> Iterator[str]:
    bare = any(fix["id"] == "staged-offsets-v2" and fix["lack"] is not None for fix in _hits(overlay))
    if bare and overlay["prologue_trim"] in ("on", "unknown"):
        yield (
            f"until then, {VARIABLE}=0 lets the next step mend a torn table (H10), and =verify ends the step that "
            "would keep one"
        )


def _advice_on_fixes(report: Mapping[str, Any]) -> Iterator[str]:
    overlay = report["overlay"]
    if _lacking(overlay, Lack.UNHOOKED):
        yield "start the server with the fixes: trtllm-kvfix run -- trtllm-serve MODEL ..."
        if overlay["hook"] != "source":
            yield "or put them into every server of this Python: trtllm-kvfix enable"
            yield from _advice_on_running(len(report["running"]))
    yield from _advice_on_trim(overlay)
    off = _lacking(overlay, Lack.SWITCHED_OFF)
    if off and overlay["hook"] == "off":
        yield f"{ENV_ENABLED} or kvfix.enabled is false, so no fix is applied; set it to true, or remove it"
    else:
        yield from (f"{each} is needed and switched off: take `{each}: off` out of the settings" for each in off)
    undecided = _lacking(overlay, Lack.UNDECIDED)
    if undecided:
        yield (
            f"not applied, because {form(len(undecided), 'its probe', 'their probes')} cannot tell whether "
            f"{form(len(undecided), 'it fits', 'they fit')}: {', '.join(undecided)} (kvfix.fixes.ID: off accepts that)"
        )
    observed = [fix["id"] for fix in _hits(overlay) if fix["choice"] == "observe" and fix["lack"] is None]
    if observed:
        yield f"only observed, not fixed: {', '.join(observed)}"
    needless = [fix["id"] for fix in overlay["fixes"] if fix["outlook"].startswith("not needed for")]
    if needless:
        yield f"not needed for {overlay['manager']['name']}: {', '.join(needless)}"


def _fitting(paragraphs: Sequence[str]) -> list[str]:
    """As many whole paragraphs as fit, with how many are left out."""
    lines: list[str] = []
    for at, paragraph in enumerate(paragraphs):
        more = wrapped(paragraph, INDENT)
        if at and len(lines) + len(more) > LINES_MAX - 2:
            left = len(paragraphs) - at
            lines.append(f"  {number_of(left, 'further line')} with --verbose")
            break
        lines += more
    return [*lines, f"  {MORE}"]
