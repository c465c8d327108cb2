"""The jobs of one process: each has one record, under one number, from its plan until it is applied.

    planned ---> queued ---> in flight ---> ended here ---> ended everywhere ---> applied
                   |            `--- refused, empty -------^                                    ^
       `--- taken out of the plan before any rank received it ----------------------'

    planned           the scheduler side wants it, and the next step announces it to every rank
    queued            this rank has received it: it waits in a step, for the porter, or in a lane
    in flight         the device has it, or the remote store
    ended here        this rank is done with it, well or not; others may not be
    ended everywhere  no rank uses its blocks or slots any more; the scheduler side has not looked yet
    applied           the index knows, and the record is gone

From queued to ended here a transfer belongs to a lane, which uses the same words (cpp/lanes/lane_loop.h). Both sides of
a connector in one process share one ledger. A rank without a scheduler side has nothing to apply.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import TransferLane

if TYPE_CHECKING:
    from trtllm_kvfix.offload.patches import Choosers, KeptBlocks, WorkerSide
    from trtllm_kvfix.offload.remote.messages import Look, LookAnswer


# Messages from the scheduler side to the worker sides: plain values, equal on every rank, sent by broadcast.
#
# `blocks` of a job are those of the first layer group, one for each slot, then those of the next. A host slot holds the
# parts of a block from all groups.

OVER = "its request is over"  # why a transfer never began


class StoreJob(NamedTuple):
    """A job that saves blocks of the device. They belong to the job until it has ended on every rank."""

    number: int
    request_id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]


class LoadJob(NamedTuple):
    """A job that fills blocks of a request, which waits meanwhile."""

    number: int
    request_id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    position: int  # of the first block that is written: where computing begins if the load fails
    reservation: int | None = None  # upstream's number of the reservation, under which it waits for the end
    until: int | None = None  # where computing begins otherwise, if the load brings less than was promised


class FetchJob(NamedTuple):
    """A job that fills host slots from the remote tier, while a request waits."""

    number: int
    request_id: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]


class PutJob(NamedTuple):
    """A job that copies blocks in host slots to the remote tier."""

    number: int
    request_id: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]
    is_prompt: bool = False  # others are more likely to ask for them than for what was generated


class FreeJob(NamedTuple):
    """A job that is over once nothing can write these slots of a fetch any more, though their reads have failed."""

    number: int
    request_id: int
    slots: tuple[int, ...]


Job: TypeAlias = StoreJob | LoadJob | FetchJob | PutJob | FreeJob


def places(job: StoreJob | LoadJob) -> list[tuple[int, int]]:
    """Return (layer group, block) of all that the job reads or writes on the device."""
    size = len(job.slots)
    if len(job.blocks) == size:  # one group, as most caches have
        return [(0, block) for block in job.blocks]
    return [(at // size, block) for at, block in enumerate(job.blocks)]


class Step(NamedTuple):
    """The jobs of one iteration. `fences` are jobs that end before anything else of the iteration begins, `taken_back`
    those that were sent and must not begin."""

    jobs: tuple[Job, ...] = ()
    fences: tuple[int, ...] = ()
    taken_back: tuple[int, ...] = ()

    @property
    def stores(self) -> tuple[StoreJob, ...]:
        return tuple(job for job in self.jobs if isinstance(job, StoreJob))

    @property
    def loads(self) -> tuple[LoadJob, ...]:
        return tuple(job for job in self.jobs if isinstance(job, LoadJob))

    @property
    def fetches(self) -> tuple[FetchJob, ...]:
        return tuple(job for job in self.jobs if isinstance(job, FetchJob))

    @property
    def puts(self) -> tuple[PutJob, ...]:
        return tuple(job for job in self.jobs if isinstance(job, PutJob))

    @property
    def frees(self) -> tuple[FreeJob, ...]:
        return tuple(job for job in self.jobs if isinstance(job, FreeJob))

    def transfers(self) -> list[StoreJob | LoadJob]:
        return [job for job in self.jobs if isinstance(job, StoreJob | LoadJob)]

    def __bool__(self) -> bool:
        return bool(self.jobs or self.fences or self.taken_back)


class Ended(NamedTuple):
    """A job that has ended, on one rank or, once agreed, on all of them."""

    job: int
    error: str  # empty: every byte is where it should be
    bad_slots: tuple[int, ...] = ()  # host slots that hold something else than was stored, here or in the remote tier
    no_room: bool = False  # nothing is wrong: more transfers waited than may wait
    lost_slots: tuple[int, ...] = ()  # of a fetch: those that it has not filled, bad ones among them
    unsure_slots: tuple[int, ...] = ()  # those of them that may be written later


class RankReport(NamedTuple):
    """One rank's message when the ranks meet."""

    ended: list[Ended]
    outdated: tuple[int, ...]  # loads that will have brought nothing, however they end; the scheduler side's rank knows


class Late(NamedTuple):
    """A message outside any step, for requests that have finished or wait to load. There may be no step for them."""

    step: Step = Step()
    closed: tuple[int, ...] = ()  # requests for which nothing more will be sent


AnyJob = TypeVar("AnyJob", StoreJob, LoadJob, FetchJob, PutJob, FreeJob)


class JobState(Enum):
    __hash__ = object.__hash__  # Enum's own hash is computed from the name, in Python, for each step of each job

    PLANNED = "planned"
    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    ENDED_HERE = "ended here"
    ENDED_EVERYWHERE = "ended everywhere"
    APPLIED = "applied"


TRANSFERS = (StoreJob, LoadJob)
# Only the lane knows what is in flight, so the written state goes from queued to ended here.
NEXT = {
    JobState.PLANNED: {JobState.QUEUED, JobState.APPLIED},
    JobState.QUEUED: {JobState.ENDED_HERE},
    JobState.ENDED_HERE: {JobState.ENDED_EVERYWHERE},
    JobState.ENDED_EVERYWHERE: {JobState.APPLIED},
    JobState.APPLIED: set[JobState](),
}


class WrongTurn(KvfixError):
    """A job was to change to a state that no arrow leads to."""


@dataclass(eq=False, slots=True)
class Record:
    job: Job
    plan: Any = None  # the scheduler side's, for when the job has ended
    written: JobState = JobState.PLANNED
    lane: TransferLane | None = None  # the lane that took it
    since: float | None = None  # when this rank began it, by the clock of `monotonic`
    ends: tuple[Ended, ...] = ()  # what ranks have said
    is_awaited: bool = True  # its end will be reported to upstream
    # The part of it that the next step announces:
    is_new: bool = False
    is_fence: bool = False
    is_taken_back: bool = False

    @property
    def number(self) -> int:
        return self.job.number

    @property
    def state(self) -> JobState:
        if self.written is JobState.QUEUED and self.lane is not None:
            return JobState(self.lane.state(self.number) or JobState.ENDED_HERE)
        return self.written

    @property
    def is_under_way(self) -> bool:
        """Whether it was received and is not over on all ranks. They agree on this at the points where they meet."""
        return self.written in (JobState.QUEUED, JobState.ENDED_HERE)

    def go(self, state: JobState) -> None:
        if state not in NEXT[self.written]:
            raise WrongTurn(f"job {self.number} is {self.written.value} and cannot be {state.value} next: {self.job}")
        self.written = state


class Ledger:
    """The executor's thread alone uses it. What is asked in every iteration is found without a look at all records."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._records: dict[int, Record] = {}
        self._next: dict[int, Record] = {}  # those of which the next step says something
        self._of_kind: dict[type[Job], dict[int, Record]] = {kind: {} for kind in get_args(Job)}
        self._of_request: dict[int, dict[int, Record]] = {}  # many requests may end at once: each finds its own
        self._waiting: dict[type[Job], dict[int, Any]] = {kind: {} for kind in get_args(Job)}  # not begun, by kind
        self._begun: dict[int, Record] = {}  # transfers that have not ended here, the oldest first
        self._transfers: dict[int, dict[int, Record]] = {}  # request -> its transfers under way
        self._fences: dict[int, Record] = {}  # this rank begins nothing else before they have ended
        self._ended_here: list[Ended] = []  # of which the other ranks have not heard
        self.ended: list[Ended] = []  # ended everywhere, and not applied
        self._outdated: list[int] = []  # loads of which the other ranks have not heard that they bring nothing

    def __iter__(self) -> Iterator[Record]:
        """A copy of the records as they are now, whatever comes or goes meanwhile."""
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> Record:
        return self._records[number]

    def get(self, number: int) -> Record | None:
        return self._records.get(number)

    def of(self, kind: type[Job]) -> list[Record]:
        """The records of all jobs of this kind."""
        return list(self._of_kind[kind].values())

    def slots_of(self, kind: type[Job]) -> int:
        """The blocks of all jobs of this kind."""
        return sum(len(record.job.slots) for record in self.of(kind))

    def stores(self, request_id: int) -> bool:
        """Whether blocks of the request are being stored."""
        return any(isinstance(record.job, StoreJob) for record in self._of_request.get(request_id, {}).values())

    # ------------------------------------------------------------------------------------------ scheduler side

    def next_number(self) -> int:
        return next(self._numbers)

    def plan(self, job: Job, plan: Any) -> Record:
        record = self._next[job.number] = self._add(Record(job, plan, is_new=True))
        return record

    def _add(self, record: Record) -> Record:
        self._records[record.number] = self._of_kind[type(record.job)][record.number] = record
        self._of_request.setdefault(record.job.request_id, {})[record.number] = record
        return record

    def take_out(self, request_id: int, kind: type[Job]) -> list[Record]:
        """The request's jobs of this kind that have been planned and not sent."""
        out = self.planned(request_id, kind)
        for record in out:
            del self._next[record.number]
            if record.number in self._outdated:
                self._outdated.remove(record.number)
            self._apply(record)
        return out

    def planned(self, request_id: int, kind: type[Job]) -> list[Record]:
        """The request's jobs of this kind that no rank has received."""
        of_request = self._of_request.get(request_id, {}).values()
        return [record for record in of_request if record.is_new and isinstance(record.job, kind)]

    def take_back(self, number: int) -> None:
        """Have every rank not begin a job that was sent."""
        record = self._next[number] = self._records[number]
        record.is_taken_back = True

    def fence(self, number: int) -> None:
        """Have every rank end this job before anything else begins."""
        record = self._next[number] = self._records[number]
        record.is_fence = True

    def outdate(self, load: int) -> None:
        """Note that whatever this load brings is worth nothing: its request computes."""
        self._outdated.append(load)

    def take_step(self) -> Step:
        if not self._next:
            return Step()
        named, self._next = self._next.values(), {}
        jobs: list[Job] = []
        fences: list[int] = []
        taken_back: list[int] = []
        for record in named:
            if record.is_new:
                jobs.append(record.job)
            if record.is_fence:
                fences.append(record.number)
            if record.is_taken_back:
                taken_back.append(record.number)
            record.is_new = record.is_fence = record.is_taken_back = False
        return Step(tuple(jobs), tuple(sorted(fences)), tuple(taken_back))

    def load_of(self, reservation: int) -> LoadJob | None:
        jobs = (record.job for record in self.of(LoadJob))
        return next((job for job in jobs if isinstance(job, LoadJob) and job.reservation == reservation), None)

    def take_ended_everywhere(self) -> list[tuple[Record, Ended]]:
        """Return the jobs that have ended everywhere. The caller applies them."""
        if not self.ended:
            return []
        ended, self.ended = self.ended, []
        return [(self._apply(self._records[one.job]), one) for one in ended]

    # ------------------------------------------------------------------------------------------ worker side

    def queue(self, job: Job) -> None:
        """Note that this rank has received the job."""
        if job.number not in self._records:  # planned in another process
            self._add(Record(job))
        record = self._records[job.number]
        record.go(JobState.QUEUED)
        self._waiting[type(job)][job.number] = job
        if isinstance(job, TRANSFERS):
            self._transfers.setdefault(job.request_id, {})[job.number] = record

    def waiting(self, kind: type[AnyJob]) -> Collection[AnyJob]:
        """The jobs that have been received and not begun, in this order."""
        return self._waiting[kind].values()

    def is_waiting(self, record: Record) -> bool:
        return record.number in self._waiting[type(record.job)]

    def begin(self, number: int, now: float) -> Record:
        """Begins the job: from here on it is for a lane, or for the porter."""
        record = self._records[number]
        if isinstance(record.job, TRANSFERS):
            self._begun[number] = record
        del self._waiting[type(record.job)][number]
        record.since = now
        return record

    def begun(self) -> list[Record]:
        """The transfers that have begun and not ended here, the oldest first."""
        return list(self._begun.values())

    def begun_before(self, time: float) -> list[Record]:
        return list(takewhile(lambda record: (record.since or time) < time, self._begun.values()))

    def hold_up(self, number: int) -> None:
        """Note a fence: nothing begins before this job has ended. A job without a record has ended on all ranks."""
        if number in self._records:
            self._fences[number] = self._records[number]

    def end_here(self, ended: Ended) -> None:
        record = self._records[ended.job]
        record.go(JobState.ENDED_HERE)
        record.lane = None
        self._waiting[type(record.job)].pop(ended.job, None)
        self._begun.pop(ended.job, None)
        self._ended_here.append(ended)

    def take_ended_here(self) -> list[Ended]:
        """Return the jobs that ended here and that the other ranks have not heard of yet."""
        if not self._ended_here:
            return []
        ended, self._ended_here = self._ended_here, []
        return ended

    def take_outdated(self) -> tuple[int, ...]:
        """Return the loads that were outdated since the ranks met."""
        outdated, self._outdated = self._outdated, []
        return tuple(outdated)

    def take_fences(self) -> list[int]:
        """Return the jobs for which this rank must wait now: the same on all ranks, or some would wait for others."""
        if not self._fences:
            return []
        fences, self._fences = self._fences.values(), {}
        return [record.number for record in fences if record.is_under_way]

    def requests_in_transfer(self) -> Collection[int]:
        """Those whose transfers have not ended on all ranks."""
        return self._transfers.keys()

    def transfers_of(self, request_id: int) -> list[Record]:
        """Those that have not ended on all ranks."""
        return list(self._transfers.get(request_id, {}).values())

    @property
    def is_under_way(self) -> bool:
        """Whether any job is still under way. Nobody waits for a `FreeJob`: it may take as long as a process lives."""
        return any(record.is_under_way for record in self._records.values() if not isinstance(record.job, FreeJob))

    def end_everywhere(self, ended: Ended, *, has_scheduler: bool) -> None:
        """Note the end of a job that all ranks together report."""
        record = self._records[ended.job]
        record.go(JobState.ENDED_EVERYWHERE)
        if isinstance(record.job, TRANSFERS):
            forget(self._transfers, record.job)
        if has_scheduler:
            self.ended.append(ended)
        else:
            self._apply(record)

    def _apply(self, record: Record) -> Record:
        record.go(JobState.APPLIED)
        del self._records[record.number]
        del self._of_kind[type(record.job)][record.number]
        forget(self._of_request, record.job)
        return record


def forget(by_request: dict[int, dict[int, Record]], job: Job) -> None:
    of_request = by_request[job.request_id]
    del of_request[job.number]
    if not of_request:
        del by_request[job.request_id]


class InUse:
    """Blocks of the device that running transfers read or write. The scheduler's thread alone uses it.

    Upstream may take a block away during a transfer, give it to another request, and report that request. Whatever is
    about to write the block must then wait for the transfer: a fence.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._jobs: dict[tuple[int, int], tuple[int, ...]] = {}  # layer group, block -> the jobs that use it

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: StoreJob | LoadJob) -> None:
        for place in places(job):
            self._jobs[place] = (*self._jobs.get(place, ()), job.number)

    def remove(self, job: StoreJob | LoadJob) -> None:
        for place in places(job):
            jobs = self._jobs.pop(place)
            if jobs != (job.number,):
                self._jobs[place] = tuple([number for number in jobs if number != job.number])

    def about_to_be_written(self, blocks: Sequence[Sequence[int]]) -> None:
        """Fence the jobs that use these blocks of each layer group."""
        if not self._jobs:
            return
        for group, numbers in enumerate(blocks):
            for block in numbers:
                self._fence(self._jobs.get((group, block), ()))

    def any_about_to_be_written(self) -> None:
        """Fence all jobs: upstream does not report which blocks are about to be written."""
        for jobs in self._jobs.values():
            self._fence(jobs)

    def _fence(self, jobs: tuple[int, ...]) -> None:
        for number in jobs:
            self._ledger.fence(number)


# State that both sides of the connector share within a process.
#
# Upstream makes the sides from the same arguments object, in two threads, and passes nothing from the worker side to
# the scheduler side. What stands in upstream's place finds the connectors of this process here as well.


class RemoteStore(Protocol):
    """The questions that the scheduler side asks the store, and the answers. None of it waits."""

    root: bytes  # of the keys of all blocks
    block_bytes: int  # of each rank
    ranks: int

    @property
    def is_up(self) -> bool: ...
    def look(self, look: "Look") -> bool:
        """Ask. False if there is no store now, and so no answer."""
        ...

    def take_found(self) -> "list[LookAnswer]":
        """The answers that have come."""
        ...

    def lookups_wait_s(self) -> float:
        """How long the store has answered none of those that wait; 0 if none does."""
        ...


class Weights:
    """The weights of one engine. Any thread notes that they change, and the scheduler side reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changing = 0  # calls that have not returned
        self.are_changing = False
        self.notes = 0  # whoever has seen fewer must forget what it knows of blocks

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Note the change before and after: requests may end before upstream begins, and new ones come right after."""
        self._note(1)
        try:
            yield
        finally:
            self._note(-1)

    def _note(self, change: int) -> None:
        with self._lock:
            self.notes += 1
            self._changing += change
            self.are_changing = self._changing > 0


class Link:
    """Each attribute but the ledger and the weights has one writer; both sides are called by the executor's thread."""

    def __init__(self) -> None:
        self.slots: int | None = None  # of the host pool, the same on every rank; set once it is known
        self.store: RemoteStore | None = None  # the remote tier's, once the worker side has it
        self.ledger = Ledger()
        self.weights = Weights()
        # A question to the scheduler side of this process, if there is one.
        self.plan_late: Callable[[Collection[int]], Late] = lambda _: Late()  # requests that wait for an untold load
        self.request_over: Callable[[int, bool], None] = lambda *_: None  # request, whether its blocks stay
        # Requests that wait to start, and all that are active -> the ids of those that must not start yet.
        self.hold_back: Callable[[Sequence[Any], Sequence[Any]], list[int]] = lambda *_: []
        self.load_not_awaited: Callable[[int], None] = lambda _: None  # request
        # To the cache manager: a request, and from which block to which -> their slots now, by layer group. None where
        # a block stays in its slot.
        self.slots_now: Callable[[int, int, int], list[list[int]] | None] = lambda *_: None
        # To the worker side: what was decided of hits.
        self.report_hits: Callable[[list[dict[str, Any]]], None] = lambda _: None
        # The worker side's, for calls of upstream's that come from elsewhere (`patches`).
        self.side: WorkerSide | None = None
        self.kept: KeptBlocks | None = None
        self.choosers: Choosers | None = None


_links: dict[int, tuple[Any, Link]] = {}  # by the id of the arguments, which are kept alive
_lock = threading.RLock()  # a garbage collection may call back into this module


def link_of(llm_args: Any) -> Link:
    with _lock:
        _, link = _links.setdefault(id(llm_args), (llm_args, Link()))
        return link


def links() -> list[Link]:
    """Those of all engines here. It takes no lock, which a child of fork() could find held: copying is one step."""
    return [link for _, link in _links.copy().values()]


def unlink(args_id: int) -> None:
    with _lock:
        _links.pop(args_id, None)
