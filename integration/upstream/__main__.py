"""`python -m integration.upstream --tree DIR`: the overlay on a tree of TensorRT-LLM's Python, as a table."""

import argparse
import csv
import datetime
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from integration.upstream.running import Result, run_all
from integration.upstream.scenarios import SCENARIOS

COLUMNS = ("date", "commit", "era", "fix", "scenario", "overlay", "result", "remark")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.upstream", description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help="a checkout, or a folder with a tree for each era")
    parser.add_argument("--era", action="append", help="whose bound classes: A, S, B2, C, D, N, O; may be repeated")
    parser.add_argument("--scenario", action="append", default=[], choices=[each.name for each in SCENARIOS])
    parser.add_argument("--json", type=Path, help="write everything that was seen")
    parser.add_argument("--csv", type=Path, help="append a line for each result")
    given = parser.parse_args(arguments)
    results: list[Result] = []
    for era, root in trees(given.tree, given.era):
        for result in run_all(root, era, given.scenario):
            results.append(result)
            say(line_of(result))
    summarise(results)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in results], indent=1, default=str), encoding="utf-8")
    if given.csv:
        append(given.csv, results)
    return verdict(results)


def verdict(results: list[Result]) -> int:
    """The exit code is not 0 if an arm with the overlay is wrong, or if none has run, as then nothing has been
    shown."""
    found = [each.result for each in results if each.arm != "off"]
    if not {"right", "wrong"} & set(found):
        say("no scenario ran with the overlay, so this shows nothing")
        return 1
    return int("wrong" in found)


def line_of(result: Result) -> str:
    columns = f"{result.era:3} {result.fix:18} {result.scenario:28} {result.arm:5} {result.result:8}"
    return f"{columns} {' '.join(result.remark[:150].split())}".rstrip()


def trees(folder: Path, eras: list[str] | None) -> list[tuple[str, Path]]:
    if (folder / "tensorrt_llm").is_dir():
        if not eras or len(eras) != 1:
            raise SystemExit("a single tree needs one --era: whose bound classes it expects")
        return [(eras[0], folder)]
    found = sorted(each.parent for each in folder.glob("*/tensorrt_llm"))
    if not found:
        raise SystemExit(f"{folder} holds no tensorrt_llm and no folder with one")
    return [(each.name, each) for each in found if not eras or each.name in eras]


def summarise(results: list[Result]) -> None:
    say("")
    for era in dict.fromkeys(each.era for each in results):
        mine = [each for each in results if each.era == era and each.tree]
        if not mine:
            continue
        seen = mine[0].tree
        real, doubled = len(seen.get("real", [])), len(seen.get("doubled", {}))
        say(f"{era}: {real} modules of the tree run as they are, {doubled} are doubled")
        say(f"    seams that the tree lacks: {', '.join(seen.get('missing_seams', [])) or 'none'}")
        say(f"    modules of the tree that ours replace: {', '.join(seen.get('shadowed', [])) or 'none'}")
        ours: dict[str, list[str]] = {}
        for each in mine:
            ours |= each.tree.get("methods_of_ours", {})
        for kind, names in ours.items():
            if names:
                say(f"    methods of {kind} that the tree lacks, ours instead: {', '.join(names)}")
        runtimes = sorted({each.tree["v2_runtime"] for each in mine if each.tree.get("v2_runtime")})
        if runtimes:
            say(f"    V2's runtime: {' and '.join(runtimes)}")
        called = sorted({name for each in mine for name in each.tree.get("doubles_called", [])})
        say(f"    doubles that were called: {', '.join(called) or 'none'}")
        waits = sorted({name for each in mine for name in each.tree.get("waited_for", [])})
        say(f"    operations that waited for the device: {', '.join(waits) or 'none'}")
    for each in results:
        if each.arm == "off" and each.hazard and each.result == "right":
            say(f"{each.era} {each.scenario}: upstream alone is right here, so this proves nothing")


def append(path: Path, results: list[Result]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for each in results:
            writer.writerow(
                [
                    today,
                    commit.stdout.strip(),
                    each.era,
                    each.fix,
                    each.scenario,
                    each.arm,
                    each.result,
                    each.remark[:160],
                ]
            )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
