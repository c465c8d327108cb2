"""What the library wrote about each process: races, notes and numbers; and the races of all processes merged."""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FORMAT = 1
PAIRS_MAX = 1024
# As struct Numbers in cpp/watch/report.h has them.
NUMBERS = (
    "guarded",
    "faults_stale",
    "steps",
    "dropped",
    "unwatched_streams",
    "trimmed",
    "pairs_lost",
    "gave_up",
)
COUNTS = struct.Struct(f"<2Q{len(NUMBERS)}Q{PAIRS_MAX}Q")
PYTHON_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
NATIVE_FRAME = re.compile(r"  (?P<module>\S+) (?P<offset>0x[0-9a-f]+) (?P<symbol>\S*)")
# Frames of the driver's side of a call say nothing about who made it.
DRIVER = re.compile(r"lib(cupti|cuda)\.so|libcudart")


class Frame(NamedTuple):
    """A line of Python where `line` is there, and native code else."""

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


@dataclass
class Race:
    certain: bool
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
        return self.certain, self.touch, self.how, self.use, self.device, self.use_stack.frames, self.touch_stack.frames


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
    """Each race once, those of several processes together, the certain ones first."""
    found: dict[tuple[object, ...], Race] = {}
    for process in processes:
        for race in process.races:
            same = found.setdefault(race.key, race)
            if same is not race:
                same.times += race.times
                same.pids += [pid for pid in race.pids if pid not in same.pids]
    return sorted(found.values(), key=lambda race: (not race.certain, -race.times))


def _process(path: Path) -> Watched:
    pid = int(path.stem)
    numbers, times = _counts(path.with_suffix(".counts"))
    races, notes = [], []
    for block in _blocks(path.read_text(encoding="utf-8", errors="replace").splitlines()):
        if isinstance(block, str):
            notes.append(block)
            continue
        number, race = _race(block)
        race.times = max(times[number], 1)
        race.pids = [pid]
        races.append(race)
    return Watched(pid, races, notes, numbers)


def _counts(path: Path) -> tuple[dict[str, int], Sequence[int]]:
    try:
        values = COUNTS.unpack(path.read_bytes())
    except (OSError, struct.error):
        return dict.fromkeys(NUMBERS, 0), [0] * PAIRS_MAX
    return dict(zip(NUMBERS, values[2:], strict=False)), values[2 + len(NUMBERS) :]


def _blocks(lines: Iterable[str]) -> Iterator[str | list[str]]:
    """A note as its text, a race as its lines; one that the process's death cut off is left out."""
    block: list[str] | None = None
    for line in lines:
        if line.startswith("race "):
            block = [line]
        elif block is None:
            if line.startswith("note "):
                yield line.removeprefix("note ")
        elif line == "end":
            yield block
            block = None
        else:
            block.append(line)


def _race(lines: list[str]) -> tuple[int, Race]:
    head = lines[: lines.index("stack use")]
    stacks = lines[len(head) + 1 :]
    middle = stacks.index("stack touch")
    of = dict(line.partition(" ")[::2] for line in head)
    race = Race(
        certain=of["grade"] == "race",
        touch=of["touch"],
        how=of["how"],
        use=of["use"],
        device=of["device"],
        begin=int(of["begin"], 16),
        bytes=int(of["bytes"]),
        at=int(of["at"]),
        width=int(of["width"]),
        rows=int(of["rows"]),
        stream=int(of["stream"], 16),
        age_us=int(of["age_ns"]) / 1000,
        since_us=int(of["since_ns"]) / 1000,
        use_thread=int(of["use_thread"]),
        touch_thread=int(of["touch_thread"]),
        thread_name=of["touch_thread_name"],
        use_stack=_stack(stacks[:middle]),
        touch_stack=_stack(stacks[middle + 1 :]),
    )
    return int(of["race"]), race


def _stack(lines: Iterable[str]) -> Stack:
    python, native = [], []
    started_by = None
    for line in lines:
        if found := PYTHON_FRAME.fullmatch(line):
            number = found["line"]
            python.append(Frame(found["file"], int(number) if number.isdigit() else None, found["function"]))
        elif found := NATIVE_FRAME.fullmatch(line):
            native.append(Frame(f"{found['module']}+{found['offset']}", None, found["symbol"]))
        elif line.startswith("started by thread "):
            started_by = int(line.rpartition(" ")[2])
    while native and DRIVER.search(Path(native[0].file).name):
        native.pop(0)
    return Stack(tuple(python), tuple(native), started_by)
