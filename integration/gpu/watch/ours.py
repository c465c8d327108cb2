"""`verify`, the stand-in's loop and the engine under `watch`: `python -m integration.gpu.watch.ours RESULTS.csv`.

A control, or a loop without the fix, touches what the device still uses: it has to be caught at a statement of the
case, of the stand-in or of the engine. With the fix nothing is to be reported. H5 is the device against itself, which
`watch` does not see: there nothing is reported either way. It sees no pageable memory either, so H13 is left out. An
early copy that the stager gave up because it was late still reads what the host writes next; `late` counts them, and
only where there is one may it be reported. A row is one process.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from linecache import getline
from pathlib import Path
from typing import Any

from integration.gpu.watch.ours_work import STANDINS
from trtllm_kvfix.engine.config import HAZARDS
from trtllm_kvfix.tools.demo.scenes import SCENES
from trtllm_kvfix.tools.verify.cases import CASES
from watch.gpu.rows import Run, occurrences
from watch.gpu.table import table

DEVICE_ALONE, PAGEABLE = "H5", "H13"
SEEN_OF_THE_ENGINE = ("H1", "H2", "H7", "H9")  # H8 is a matter of books
KNOWN = Path(__file__).with_name("known.txt")
OURS = ("tools/verify/", "hazards/", "tests/standin/", "trtllm_kvfix/engine/")  # where the statement has to be


@dataclass
class Row:
    hazard: str
    what: str
    case: str
    arm: str
    times: int
    wrong: int
    late: int
    races: int
    possible: int
    statements: str
    status: int
    ok: bool
    detail: str = ""


def row_of(hazard: str, what: str, name: str, case: str, arm: str, times: int) -> Row:
    command = [sys.executable, "-m", "integration.gpu.watch.ours_work", what, name, arm, str(times)]
    options = ("--suppress", str(KNOWN)) if what == "standin" else ()
    done, report = Run(command, "report", options).outcome()
    lines = done.stdout.strip().splitlines()
    said = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"wrong": -1, "late": 0}
    wrong, late = said["wrong"], said["late"]
    found = [*report.get("races", []), *report.get("possible", [])]
    races, possible = occurrences(report, "races", "unordered"), occurrences(report, "possible")
    at = [statement(race) for race in found]
    row = Row(hazard, what, case, arm, times, wrong, late, races, possible, " | ".join(at), done.returncode, False)
    if hazard == DEVICE_ALONE:
        row.ok = (races, possible, done.returncode) == (0, 0, 0)
    elif arm == "fixed":
        silent = (races, possible, done.returncode) == (0, 0, 0)
        row.ok = wrong == 0 and (silent or (late > 0 and all(map(of_early_copy, found))))
    else:
        # The loop waits for other things, too: not every step that is held meets a touch, or one that changes a value.
        often, corrupt = (times, wrong > 0) if what == "verify" else (1, True)
        row.ok = races + possible >= often and corrupt and all(at)
    if not row.ok:
        row.detail = " | ".join(done.stderr.strip().splitlines()[-30:])
    return row


def statement(race: dict[str, Any]) -> str:
    """The innermost line that touched of the case, the stand-in or the engine."""
    for frame in race["touch_stack"]["python"]:
        file, line, function = frame["file"], frame["line"], frame["function"]
        if line is not None and any(part in file for part in OURS):
            return f"{Path(file).name}:{line} in {function}: {getline(file, line).strip()}"
    return ""


def of_early_copy(race: dict[str, Any]) -> bool:
    """A shipment is a native call: of a statement of upstream's below the fix, of a case, or of the engine."""
    ships = ("staged_offsets_v1/fix.py", "staged_offsets_v2/fix.py", "hazards/offsets.py", "engine/tables.py")
    return any(frame["file"].endswith(ships) for frame in race["use_stack"]["python"][:2])


def rows(iterations: int, steps: int, chats: int, at_once: int, only: str) -> Iterator[Row]:
    work = [
        (case.hazard, "verify", str(number), f"{case.name} {case.variant}", arm, iterations)
        for number, case in enumerate(CASES)
        if case.hazard != PAGEABLE
        for arm in ("control", "fixed")
    ]
    work += [
        (given.hazard, "standin", name, f"{name} {given.variant}", arm, steps)
        for name, given in STANDINS.items()
        for arm in ("unfixed", "fixed")
    ]
    work += [
        (HAZARDS[scene.fix], "engine", scene.fix, f"{scene.fix} chats", arm, chats)
        for scene in SCENES
        if HAZARDS[scene.fix] in (*SEEN_OF_THE_ENGINE, DEVICE_ALONE)
        for arm in ("unfixed", "fixed")
    ]
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda each: row_of(*each), [each for each in work if only in f"{each[1]} {each[3]}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--iterations", type=int, default=20, help="of each arm of verify")
    parser.add_argument("--steps", type=int, default=300, help="of the stand-in's loop")
    parser.add_argument("--chats", type=int, default=3, help="of the demo's users with the engine")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    bad = 0
    with table(given.results, [field.name for field in fields(Row)]) as add:
        for row in rows(given.iterations, given.steps, given.chats, given.at_once, given.only):
            add(astuple(row))
            bad += not row.ok
            print("ok " if row.ok else "BAD", *astuple(row)[:-1], flush=True)
            if row.detail:
                print(row.detail, flush=True)
    print(f"{bad} rows are not as they have to be")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
