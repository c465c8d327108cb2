"""Compares which tool sees which of the planted races: `python -m watch.gpu.others RESULTS.csv`.

hostrace, each tool of compute-sanitizer and PyTorch's CUDA sanitizer, over the same programs, racy and repaired. A tool
sees a race where it complains about the racy program and not about its repaired twin. A tool that is not on this
machine has a row that says so.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from watch.gpu.rows import PROGRAMS
from watch.gpu.table import table

LIMIT_S = 60
CHOSEN = (
    *("copy_to_device", "copy_to_host", "memset_bytes", "neighbour_first", "by_read", "kernel_parameter"),
    *("graph_of_a_capture", "by_cuMemFreeHost", "block_offsets_rewritten", "sampling_inputs_rewritten"),
    *("tokens_read_early", "graph_input_rewritten", "event_of_the_wrong_copy"),
)
SANITIZER = {
    "memcheck": ("--tool", "memcheck"),
    "memcheck, stream-ordered": ("--tool", "memcheck", "--track-stream-ordered-races", "all"),
    "racecheck": ("--tool", "racecheck"),
    "initcheck": ("--tool", "initcheck"),
    "synccheck": ("--tool", "synccheck"),
}
COMPLAINTS = {
    "watch": re.compile(r"^hostrace: (RACE|UNORDERED|POSSIBLE) ", re.MULTILINE),
    "torch": re.compile(r"CSAN detected a possible data race"),
}
SUMMARY = re.compile(r"SUMMARY: (\d+)")


@dataclass
class Row:
    program: str
    tool: str
    racy: str  # complains, silent, or what went wrong
    repaired: str
    sees: str  # yes, no, missing, failed
    detail: str = ""


def compute_sanitizer() -> str | None:
    found = [shutil.which("compute-sanitizer")]
    toolkits = sorted(Path("/usr/local").glob("cuda*"), reverse=True)
    found += [str(kit / folder / "compute-sanitizer") for kit in toolkits for folder in ("bin", "compute-sanitizer")]
    found += map(str, Path(sysconfig.get_paths()["purelib"]).glob("nvidia/**/compute-sanitizer"))
    return next((each for each in found if each and Path(each).is_file() and os.access(each, os.X_OK)), None)


def tools() -> dict[str, tuple[list[str] | None, dict[str, str]]]:
    """The command in front of the program, none where the tool is missing, and what it needs in the environment."""
    sanitizer = compute_sanitizer()
    made: dict[str, tuple[list[str] | None, dict[str, str]]] = {
        "watch": ([sys.executable, "-m", "hostrace", "--strict", "--gates", "--"], {}),
        "torch": ([], {"TORCH_CUDA_SANITIZER": "1"}),
    }
    for name, options in SANITIZER.items():
        made[name] = (None if sanitizer is None else [sanitizer, *options], {})
    return made


def outcome(tool: str, prefix: list[str], variables: dict[str, str], program: str, arm: str) -> tuple[str, str]:
    command = [*prefix, sys.executable, "-m", "watch.gpu.run_planted", program, arm, "3"]
    # A tool may make calls wait for the device: the gate opens by itself.
    held = {} if tool == "watch" else {"HOSTRACE_HOLD_MS": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            status = subprocess.run(
                command, stdout=said, stderr=said, timeout=LIMIT_S, check=False, env={**os.environ, **held, **variables}
            ).returncode
        except subprocess.TimeoutExpired:
            return "timed out", ""
        said.seek(0)
        text = said.read()
    if tool in COMPLAINTS:
        complains = COMPLAINTS[tool].search(text) is not None
    else:
        totals = [int(found) for found in SUMMARY.findall(text)]
        if not totals:
            return "failed", text[-400:]
        complains = sum(totals) > 0
    if complains:
        return "complains", ""
    return ("silent", "") if status == 0 else ("failed", text[-400:])


def row_of(tool: str, prefix: list[str] | None, variables: dict[str, str], program: str) -> Row:
    if prefix is None:
        return Row(program, tool, "", "", "missing", "compute-sanitizer is not on this machine")
    (racy, detail), (repaired, more) = (outcome(tool, prefix, variables, program, arm) for arm in ("racy", "repaired"))
    failed = {racy, repaired} - {"complains", "silent"}
    sees = "failed" if failed else "yes" if (racy, repaired) == ("complains", "silent") else "no"
    return Row(program, tool, racy, repaired, sees, " ".join(f"{detail} {more}".split()))


def rows(at_once: int) -> Iterator[Row]:
    torch_only = set(PROGRAMS["torch"])
    work = [
        (tool, prefix, variables, program)
        for program in CHOSEN
        for tool, (prefix, variables) in tools().items()
        if tool != "torch" or program in torch_only
    ]
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda each: row_of(*each), work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--at-once", type=int, default=12)
    given = parser.parse_args()
    print(f"compute-sanitizer: {compute_sanitizer() or 'not on this machine'}", flush=True)
    unseen = 0
    with table(given.results, [field.name for field in fields(Row)]) as add:
        for row in rows(given.at_once):
            add(astuple(row))
            unseen += row.tool == "watch" and row.sees != "yes"
            print(f"{row.program:28} {row.tool:26} {row.sees:8} {row.detail[:150]}", flush=True)
    return int(unseen > 0)


if __name__ == "__main__":
    sys.exit(main())
