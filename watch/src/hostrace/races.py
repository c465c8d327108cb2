"""Records of the library about each process: races, notes and numbers; and the races of all processes merged."""

import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

PAIRS_MAX = 1024
# As struct Counts in cpp/hostrace/counts.h has them.
NUMBERS = (
    "guarded",
    "faults_stale",
    "steps",
    "dropped",
    "unwatched_streams",
    "trimmed",
    "pairs_lost",
    "gave_up",
    "let_go",
    "unbegun",
    "own_order",
    "shared_pages",
)
COUNTS = struct.Struct(f"<{len(NUMBERS) + PAIRS_MAX}Q")
# Frames on the driver's side of a call do not show the caller.
DRIVER = re.compile(r"lib(cupti|cuda)\.so|libcudart")


class Frame(NamedTuple):
    """A line of Python if `line` is there, else native code."""

    file: str
    line: int | None
    function: str

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}" if self.line is not None else self.file
        return f"{at} in {self.function}" if self.function else at


@dataclass(frozen=True)
class Stack:
    python: tuple[Frame, ...]
    native: tuple[Frame, ...]
    started_by: int | None = None  # the thread whose Python this is, where the touching one has none

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.python or self.native


GRADES = ("race", "unordered", "possible")  # the surest first


@dataclass
class Race:
    grade: str
    touch: str  # read, write, free
    how: str  # the call that touched, empty for an instruction
    use: str  # copy, kernel, ...
    device: str  # reads or writes
    begin: int
    bytes: int
    at: int
    width: int
    rows: int
    stream: int
    age_us: float
    since_us: float
    use_thread: int
    touch_thread: int
    thread_name: str
    use_stack: Stack
    touch_stack: Stack
    times: int = 1
    pids: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        return self.grade, self.touch, self.how, self.use, self.device, self.use_stack.frames, self.touch_stack.frames


@dataclass
class Watched:
    """One process."""

    pid: int
    races: list[Race]
    notes: list[str]
    numbers: dict[str, int]

    @property
    def refused(self) -> str | None:
        return next((note.removeprefix("refused: ") for note in self.notes if note.startswith("refused: ")), None)


def read(folder: Path) -> list[Watched]:
    return [_process(path) for path in sorted(folder.glob("*.races"), key=lambda path: int(path.stem))]


def merged(processes: Iterable[Watched]) -> list[Race]:
    """Each race once, those of several processes together, the surest first."""
    found: dict[tuple[object, ...], Race] = {}
    for process in processes:
        for race in process.races:
            same = found.setdefault(race.key, race)
            if same is not race:
                same.times += race.times
                same.pids += [pid for pid in race.pids if pid not in same.pids]
    return sorted(found.values(), key=lambda race: (GRADES.index(race.grade), -race.times))


def _process(path: Path) -> Watched:
    numbers, times = _counts(path.with_suffix(".counts"))
    process = Watched(int(path.stem), [], [], numbers)
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            found = json.loads(line)
        except ValueError:  # the process's death cut it off
            continue
        if "note" in found:
            process.notes.append(found["note"])
        else:
            number = found.pop("number")
            process.races.append(_race(found, max(times[number], 1), process.pid))
    return process


def _counts(path: Path) -> tuple[dict[str, int], Sequence[int]]:
    try:
        values: Sequence[int] = COUNTS.unpack(path.read_bytes())
    except (OSError, struct.error):
        values = [0] * (len(NUMBERS) + PAIRS_MAX)
    return dict(zip(NUMBERS, values, strict=False)), values[len(NUMBERS) :]


def _race(found: dict[str, Any], times: int, pid: int) -> Race:
    """A race with the library's field names, except for the unit of times."""
    for name in ("age", "since"):
        found[f"{name}_us"] = found.pop(f"{name}_ns") / 1000
    for name in ("use_stack", "touch_stack"):
        found[name] = _stack(found[name])
    return Race(**found, times=times, pids=[pid])


def _stack(found: dict[str, Any]) -> Stack:
    native = [Frame(f"{module}+{offset:#x}", None, symbol) for module, offset, symbol in found["native"]]
    while native and DRIVER.search(Path(native[0].file).name):
        native.pop(0)
    python = (Frame(*frame) for frame in found.get("python", ()))
    return Stack(tuple(python), tuple(native), found.get("started_by"))
