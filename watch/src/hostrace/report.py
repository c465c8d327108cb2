"""The report of a run: as plain text, and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hostrace.races import GRADES, NUMBERS, Race, Stack, Watched, merged
from hostrace.suppressions import Suppression, split

FORMAT = 3
LISTS = ("races", "unordered", "possible", "suppressed")
VERBS = {"read": "read it", "write": "wrote it", "free": "gave it back"}
COMPARED = "compared"  # how a touch was found that nobody saw: the bytes had changed
PROMISED = "copy that should have read it"
UNSEEN = {
    "dropped": ("use", "could not be watched: too many at once, or their pages could not be protected"),
    "unwatched_streams": ("use", "could not be watched: the stream took no flag"),
    "shared_pages": (
        "use",
        "could be protected in part only: registered memory shares pages with other memory, which are never protected",
    ),
    "digested": (
        "source",
        "of copies had bytes that are not protected: these were compared when the program had waited",
    ),
    "let_go": ("use", "had ended, and left the books before the program had observed that: too many, or in the way"),
    "unbegun": ("use", "was touched while the device waited for the host before it: it is no longer watched"),
    "own_order": ("launch", "of a graph in which the host takes part: copies in it are not watched"),
    "unread_bodies": (
        "launch",
        "of a graph with a conditional node that was copied from another graph: this driver does not tell its body",
    ),
    "trimmed": ("kernel", "got more pinned memory than is watched of it (64 MiB from the address on)"),
    "pairs_lost": ("race", "found no room in the list"),
    "gave_up": ("time", "a held thread went on because the device did not finish in time"),
}


@dataclass
class Report:
    command: list[str]
    status: int
    held: bool
    races: list[Race]
    unordered: list[Race]
    possible: list[Race]
    suppressed: list[Race]
    notes: list[str]
    numbers: dict[str, int]
    processes: int  # those that were watched
    refused: int  # and those that could not be: the notes say why

    @classmethod
    def of(
        cls,
        command: list[str],
        status: int,
        held: bool,
        processes: list[Watched],
        suppressions: list[Suppression],
        more_notes: list[str],
    ) -> "Report":
        kept, suppressed = split(merged(processes), suppressions)
        races, unordered, possible = ([race for race in kept if race.grade == grade] for grade in GRADES)
        notes = [note for process in processes for note in process.notes if note != "watching"]
        numbers = {name: sum(process.numbers[name] for process in processes) for name in NUMBERS}
        notes += [f"{number_of(numbers[name], noun)} {rest}" for name, (noun, rest) in UNSEEN.items() if numbers[name]]
        unique = list(dict.fromkeys(notes + more_notes))
        refused = sum(process.refused is not None for process in processes)
        watched = len(processes) - refused - sum(process.left_behind for process in processes)
        return cls(command, status, held, races, unordered, possible, suppressed, unique, numbers, watched, refused)

    @property
    def blind(self) -> bool:
        """CUDA ran, and nobody looked."""
        none_could_be = self.none_watched and self.numbers["unwatched_streams"] > 0
        return none_could_be or (self.refused > 0 and self.processes == 0)

    @property
    def none_watched(self) -> bool:
        return self.numbers["guarded"] == 0

    @property
    def verdict(self) -> str:
        """What the run is worth as evidence; report.schema.json says what each word means."""
        if self.blind:
            return "blind"
        if self.races or self.unordered:
            return "race"
        if self.possible:
            return "possible"
        return "nothing-watched" if self.none_watched else "silent"

    def failed(self, strict: bool) -> bool:
        return bool(self.races or self.unordered) or (strict and bool(self.possible))


def number_of(count: int, singular: str, plural: str = "") -> str:
    """`number_of(1, "race")` is "1 race", and `number_of(2_000, "race")` is "2,000 races"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def title(race: Race) -> str:
    """The race in one sentence."""
    doing = "reads" if race.device == "reads" else "writes"
    touched = VERBS[race.touch]
    if race.how == COMPARED:
        touched = "changed it" if race.touch == "write" else touched
    elif race.how:
        touched = f"{touched} by {race.how}()"
    if race.use == PROMISED:
        return f"The host {touched} after a copy that the driver promised to have read by then, and may read later"
    if race.grade == "race":
        return f"The host {touched} while a {race.use} still {doing} it"
    if race.grade == "unordered":
        return f"The host {touched}, and nothing had waited for a {race.use} that {doing} it"
    return f"The host {touched} while a {race.use} may still use it"


def remedy(race: Race) -> str:
    """What would order the two, in one sentence."""
    streams = {0: "the default stream", 1: "the default stream", 2: "the thread's default stream"}
    stream = streams.get(race.stream, f"stream {race.stream:#x}")
    behind = f"the launch of the graph that has this {race.use.partition(' ')[0]}"
    behind = behind if race.use.endswith("graph") else f"the {race.use}"
    if race.use == PROMISED:
        return (
            "The program is right (DURING_API_CALL), and drivers break that promise for pageable sources of more than "
            f"64 KiB: pin the source, or let the host wait for {stream} before it touches it."
        )
    wait = f"let the host wait for {stream}, or for an event recorded there behind {behind},"
    if race.touch == "free":
        text = f"{wait} before it gives the memory back"
    elif race.touch == "read":
        text = f"{wait} before it reads"
    elif race.device == "writes":
        text = f"{wait} before it writes, or give {behind} memory of its own"
    else:
        text = f"{wait} before it writes, or let it fill another buffer meanwhile"
    if race.grade == "possible":
        unknown = "nothing that hostrace does not know orders them"
        if "kernel" in race.use:
            unknown = "the kernel uses this memory"
        elif "conditional" in race.use:
            unknown = "the body runs"
        return f"If {unknown}, {text}."
    return f"{text[0].upper()}{text[1:]}."


def where(race: Race) -> str:
    """The bytes, and for how long they have been in use."""
    shape = f"{race.bytes:,} bytes"
    if race.rows > 1:
        shape += f" ({race.rows:,} rows of {race.width:,})"
    age = f"{race.age_us:,.0f} us"
    since = f"enqueued {age} before" if race.grade == "unordered" else f"in use for {age}"
    first = f"somewhere from byte {race.at:,} on" if race.how == COMPARED else f"byte {race.at:,}"
    return f"{first} of {shape} at {race.begin:#x}, {since} on stream {race.stream:#x}"


def lines(report: Report) -> Iterator[str]:
    for races, heading in (
        (report.races, "RACE"),
        (report.unordered, "UNORDERED"),
        (report.possible, "POSSIBLE"),
    ):
        for number, race in enumerate(races, 1):
            yield from race_lines(f"{heading} {number}", race)
    for note in report.notes:
        yield f"note: {note}"
    yield summary(report)


def race_lines(heading: str, race: Race) -> Iterator[str]:
    times = f", {race.times:,} times" if race.times > 1 else ""
    yield f"{heading}: {title(race)}{times}"
    yield f"  {where(race)}"
    yield f"  remedy: {remedy(race)}"
    if race.pinned_stack.place is not None:
        yield f"  pinned at {race.pinned_stack.place}"
    noticed = "touched" if race.how != COMPARED else "noticed"
    yield f"  {noticed} by thread {race.touch_thread} ({race.thread_name}){_started(race.touch_stack)}:"
    yield from _frames(race.touch_stack)
    yield f"  enqueued by thread {race.use_thread}:"
    yield from _frames(race.use_stack)


def summary(report: Report) -> str:
    races, uses = number_of(len(report.races), "race"), number_of(report.numbers["guarded"], "use")
    processes = number_of(report.processes, "process", "processes")
    graded = f"{races}, {len(report.unordered)} unordered, {len(report.possible)} possible"
    text = f"{graded}, {len(report.suppressed)} suppressed; {uses} watched in {processes}"
    if report.none_watched:
        seen = "could be watched" if report.numbers["unwatched_streams"] else "of pinned memory was seen"
        text += f": no use {seen}, so this says nothing about races"
    if not report.processes and not report.refused:
        text += ". No process loaded the library: CUDA was not used, or something emptied the command's environment"
    if report.numbers["steps"]:
        text += f", pages open for a neighbour {number_of(report.numbers['steps'], 'time')}"
    return text


def as_json(report: Report) -> dict[str, Any]:
    """As report.schema.json has it, whose number is `format`."""
    made = {"format": FORMAT, "verdict": report.verdict, **asdict(report)}
    for name in LISTS:
        for race, entry in zip(getattr(report, name), made[name], strict=True):
            entry |= {"title": title(race), "remedy": remedy(race)}
    return made


def _started(stack: Stack) -> str:
    return "" if stack.started_by is None else f", started by thread {stack.started_by}, whose Python this is"


def _frames(stack: Stack) -> Iterator[str]:
    if not stack.frames:
        yield "    (no stack)"
    for frame in stack.frames:
        yield f"    {frame}"
    if stack.python and stack.native:
        yield f"    native: {stack.native[0]}"
