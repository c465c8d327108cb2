"""The report of `doctor` as text: whether the server is hit, by what, and what to do. With --verbose everything behind
it follows. Nothing is examined here."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtllm_kvfix.overlay.fix import HOST_TIER, State
from trtllm_kvfix.overlay.prologue_trim import VARIABLE
from trtllm_kvfix.plurals import form, listed, number_of
from trtllm_kvfix.settings import ENV_ENABLED
from trtllm_kvfix.sizes import bytes_text
from trtllm_kvfix.tools.doctor.findings import HOLDS, Lack
from trtllm_kvfix.tools.terminal import wrapped

LINES_MAX = 10  # after the verdict
UNKNOWN = "unknown"  # a variant
NOT_FIXED, PARTLY_FIXED = "NOT FIXED", "PARTLY FIXED"
MORE = "Facts, reasons and buffers: trtllm-kvfix doctor --verbose"
# Without kernels for the GPU the fixes hold, some are slower, and there is no canary. Figures: docs/benchmarks.md (What
# bounds it) and docs/offload.md (Speed), on an H200.
COSTS = (
    "the CPU copies tables of block offsets of 64 KiB or more; from 16 MiB on, that takes 1.6 to 2.9 times as long",
    "block offsets of V2 managers travel as two tables, where one is enough",
    "the offload connector stores blocks of 16 KiB at 34 GB/s instead of 49, and loads them at 27 instead of 42",
    "`verify` shows the order of operations on the simulated device, and nothing about this GPU",
    "the canary (`kvfix.canary`) stands down when it begins, and sees nothing",
)
CURE = "build it where nvcc 12 or newer is in PATH or in CUDA_HOME: pip install . -C cmake.define.KVFIX_KERNELS=ON"
CANNOT_SEE = (
    "Python that starts a server may choose another manager, some models bring their own, and TensorRT-LLM may fall "
    "back to V1: doctor sees none of that."
)
INDENT = 2
NAME_COLUMNS = 24


def lines(report: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    yield from answer(report, verbose=verbose)
    if verbose:
        yield from _behind_it(report)


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
    by = listed(dict.fromkeys(_hazard(fix, overlay) for fix in hits))
    fixes = listed(fix["id"] for fix in hits)
    standing = _standing(report)
    if well and standing in (NOT_FIXED, PARTLY_FIXED):
        well = ", by your settings"
    return f"{standing}{well}: {manager}, hit by {by}; {fixes} {form(len(hits), 'fixes it', 'fix them')}."


def _hazard(fix: Mapping[str, Any], overlay: Mapping[str, Any]) -> str:
    """With what a server must have to be hit, where doctor has not seen that it has it."""
    only_with = fix["only_with"]
    has_it = not only_with or (only_with == HOST_TIER and overlay["manager"]["has_host_tier"])
    return str(fix["hazard"]) if has_it else f"{fix['hazard']} (with {only_with})"


def _hits(overlay: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    hits = [fix for fix in overlay["fixes"] if fix["state"] == State.NEEDED.value and fix["matters"]]
    return sorted(hits, key=lambda fix: int(fix["hazard"][1:]))


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
    needless: dict[str, list[str]] = {}
    for fix in overlay["fixes"]:
        if fix["outlook"].startswith("not needed "):
            needless.setdefault(fix["outlook"], []).append(fix["id"])
    yield from (f"{why}: {', '.join(ids)}" for why, ids in needless.items())


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


def _behind_it(report: Mapping[str, Any]) -> Iterator[str]:
    if report["problems"]:
        yield from ("", "Problems")
        for problem in report["problems"]:
            yield from wrapped(problem, INDENT)
    overlay = report["overlay"]
    if overlay is not None and overlay["manager"] is not None:
        yield from ("", "Manager of the KV cache")
        yield from wrapped(f"{overlay['manager']['said']}: {overlay['manager']['why']}", INDENT)
        yield from wrapped(CANNOT_SEE, INDENT)
        yield from _lines_on_fixes(overlay)
        yield from _lines_on_buffers(overlay["buffers"])
    if report["kernels_missing"] is not None:
        yield from ("", "What the missing kernels cost")
        for cost in (*COSTS, CURE):
            yield from wrapped(cost, INDENT)
    yield from ("", "This machine")
    for name, value in _facts(report):
        yield from wrapped(f"{name:{NAME_COLUMNS}}{value}", INDENT, NAME_COLUMNS)


def _lines_on_fixes(overlay: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "Fixes")
    for fix in overlay["fixes"]:
        trial = overlay["self_tests"][fix["id"]]
        yield from wrapped(f"{fix['id']} ({fix['hazard']}): {fix['outlook']}", INDENT)
        yield from wrapped(f"setting {fix['choice']}; self-test {trial}; {fix['reason']}", 2 * INDENT)


def _lines_on_buffers(buffers: list[Mapping[str, Any]]) -> Iterator[str]:
    unguarded = [each for each in buffers if each["guard"] is None]
    yield from ("", "Host buffers")
    yield from wrapped(
        f"reused host buffers that are copied asynchronously: {len(buffers)}, of which nothing protects "
        f"{len(unguarded)}{':' if unguarded else ''}",
        INDENT,
    )
    yield from (f"    {each['file']}:{each['line']} {each['name']}" for each in unguarded)


def _facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("package", "python", "platform", "numpy"):
        yield key, report[key] or "not installed"
    if report["extension"] is None:
        yield "extension", "missing"
    else:
        yield from ((f"extension {key}", value) for key, value in report["extension"].items())
    yield from ((f"optional {key}", value or "not installed") for key, value in report["optional"].items())
    found = report["machine"]
    yield "driver", found["driver"] or "none"
    yield "GPU", found["gpu"] or "none"
    locked = found["memory_lock_bytes"]
    yield "memory lock", "unlimited" if locked is None else f"at most {bytes_text(locked)} (ulimit -l)"
