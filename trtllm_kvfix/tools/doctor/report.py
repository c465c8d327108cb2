"""The report of `doctor` as text: the verdict, what to do, and with --verbose everything behind it."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_kvfix.sizes import bytes_text
from trtllm_kvfix.tools.doctor import verdict
from trtllm_kvfix.tools.terminal import wrapped

# Without kernels for the GPU the fixes hold, and some are slower. Figures: docs/benchmarks.md (What bounds it) and
# docs/offload.md (Speed), on an H200.
COSTS = (
    "the CPU copies tables of block offsets of 64 KiB or more; from 16 MiB on, that takes 1.6 to 2.9 times as long",
    "block offsets of V2 managers travel as two tables, where one is enough",
    "the offload connector stores blocks of 16 KiB at 34 GB/s instead of 49, and loads them at 27 instead of 42",
    "`verify` shows the order of operations on the simulated device, and nothing about this GPU",
)
CURE = "build it where nvcc 12 or newer is in PATH or in CUDA_HOME: pip install . -C cmake.define.KVFIX_KERNELS=ON"
CANNOT_SEE = (
    "Python that starts a server may choose another manager, some models bring their own, and TensorRT-LLM may fall "
    "back to V1: doctor sees none of that."
)
INDENT = 2
NAME_COLUMNS = 24


def lines(report: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    yield from verdict.answer(report, verbose=verbose)
    if verbose:
        yield from _behind_it(report)


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
