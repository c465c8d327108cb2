"""Records of the library about each process: races, notes and numbers; and the races of all processes merged."""

import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

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
    "digested",
    "unread_bodies",
)
COUNTS = struct.Struct(f"<{len(NUMBERS) + PAIRS_MAX}Q")
# Frames on the driver's side of a call do not show the caller.
SYSTEM = re.compile(r"/(libc|libm|libpthread|libstdc\+\+|ld-linux-[a-z0-9_-]+)\.so")
DRIVER = re.compile(r"lib(cupti|cuda)\.so|libcudart")


@dataclass(frozen=True)
class Frame:
    """A place in Python, or in native code, which has a module; symbols.py finds its file and line."""

    file: str
    line: int | None
    function: str
    module: str = ""
    offset: int = 0

    @property
    def of_system(self) -> bool:
        return SYSTEM.search(self.module) is not None or self.file.startswith("/usr/")

    @property
    def unit(self) -> str:
        """The function and its file, or what is known of them."""
        return f"{self.function or '?'} ({Path(self.file or self.module).name})"

    def __str__(self) -> str:
        place = f"{self.module}+{self.offset:#x}"
        at = f"{self.file}:{self.line}" if self.line is not None else place
        text = f"{at} in {self.function}" if self.function else at
        return f"{text} ({place})" if self.module and self.line is not None else text


@dataclass(frozen=True)
class Stack:
    python: tuple[Frame, ...]
    native: tuple[Frame, ...]
    started_by: int | None = None  # the thread whose Python this is, where the touching one has none

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.python or self.native

    @property
    def place(self) -> Frame | None:
        """The innermost frame with a line of the program: of the C library and of headers it says little."""
        own = (frame for frame in self.frames if frame.line is not None and not frame.of_system)
        return next(own, next(iter(self.frames), None))

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Stack":
        """Of a report in JSON."""
        python, native = (tuple(Frame(**frame) for frame in found[side]) for side in ("python", "native"))
        return cls(python, native, found["started_by"])


STACKS = ("pinned_stack", "use_stack", "touch_stack")
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
    pinned_stack: Stack  # of the call that pinned the memory
    use_stack: Stack
    touch_stack: Stack
    times: int = 1
    pids: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[object, ...]:
        return self.grade, self.touch, self.how, self.use, self.device, self.use_stack.frames, self.touch_stack.frames

    @property
    def identity(self) -> tuple[str, ...]:
        """What stays of it from run to run, and when lines move. Luck decides whether the device was over in time."""
        places = (self.touch_stack.place, self.use_stack.place)
        return self.touch, self.how, self.use, self.device, *("?" if at is None else at.unit for at in places)

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Race":
        """Of a report in JSON, which has more about each."""
        stacks = {name: Stack.of(found[name]) for name in STACKS}
        return cls(**{each.name: found[each.name] for each in fields(cls)} | stacks)


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

    @property
    def left_behind(self) -> bool:
        """It started a program without the library, and did nothing else that is known of it."""
        return bool(self.notes) and all(note.startswith("not watched: ") for note in self.notes)


def read(folder: Path) -> list[Watched]:
    return [_process(path) for path in sorted(folder.glob("*.races"), key=_numbers)]


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


def _numbers(path: Path) -> list[int]:
    """The process, and which of its programs it was, if it had several."""
    return [int(number) for number in path.stem.split("-")]


def _process(path: Path) -> Watched:
    numbers, times = _counts(path.with_suffix(".counts"))
    process = Watched(_numbers(path)[0], [], [], numbers)
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
    for name in STACKS:
        found[name] = _stack(found[name])
    return Race(**found, times=times, pids=[pid])


def _stack(found: dict[str, Any]) -> Stack:
    native = [Frame("", None, symbol, module, offset) for module, offset, symbol in found["native"]]
    while native and DRIVER.search(Path(native[0].module).name):
        native.pop(0)
    python = (Frame(*frame) for frame in found.get("python", ()))
    return Stack(tuple(python), tuple(native), found.get("started_by"))
