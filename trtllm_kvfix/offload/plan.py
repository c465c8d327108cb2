"""What the scheduler side tells the worker sides: plain values, the same on every rank, that travel by broadcast.

`blocks` of a job are those of the first layer group, one for each slot, then those of the next. A host slot holds what
all groups have of a block.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

OVER = "its request is over"  # why a transfer never began


class StoreJob(NamedTuple):
    """Blocks of the device that are saved. They belong to the job until it has ended on every rank."""

    job: int
    request_id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]


class LoadJob(NamedTuple):
    """Blocks of a request that are filled while it waits."""

    job: int
    request_id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    position: int  # of the first block that is written: where computing begins if the load fails
    reservation: int | None = None  # upstream's number of it, under which it waits for the end
    until: int | None = None  # where it begins otherwise, if the load brings less than was promised


class FetchJob(NamedTuple):
    """Host slots that are filled from the remote tier, while a request waits."""

    job: int
    request_id: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]


class PutJob(NamedTuple):
    """Host slots whose blocks go to the remote tier as well."""

    job: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]


def places(job: StoreJob | LoadJob) -> Iterator[tuple[int, int]]:
    """(layer group, block) of all that the job reads or writes on the device."""
    return ((at // len(job.slots), block) for at, block in enumerate(job.blocks))


@dataclass(frozen=True)
class Step:
    """The transfers of one iteration. `fences` are jobs that end before anything else of the iteration begins,
    `taken_back` those that were told and must not begin."""

    stores: tuple[StoreJob, ...] = ()
    loads: tuple[LoadJob, ...] = ()
    fences: tuple[int, ...] = ()
    taken_back: tuple[int, ...] = ()
    fetches: tuple[FetchJob, ...] = ()
    puts: tuple[PutJob, ...] = ()

    def without(self, jobs: Collection[StoreJob | LoadJob]) -> "Step":
        stores = tuple(job for job in self.stores if job not in jobs)
        return replace(self, stores=stores, loads=tuple(job for job in self.loads if job not in jobs))

    def __bool__(self) -> bool:
        return any((self.stores, self.loads, self.fences, self.taken_back, self.fetches, self.puts))


class NextStep:
    """What has been planned and not been told."""

    def __init__(self) -> None:
        self.stores: list[StoreJob] = []
        self.loads: list[LoadJob] = []
        self.taken_back: list[int] = []
        self.fetches: list[FetchJob] = []
        self.puts: list[PutJob] = []

    def take(self, fences: tuple[int, ...]) -> Step:
        step = Step(
            tuple(self.stores), tuple(self.loads), fences,
            tuple(self.taken_back), tuple(self.fetches), tuple(self.puts),
        )  # fmt: skip
        self.stores, self.loads, self.taken_back, self.fetches, self.puts = [], [], [], [], []
        return step

    def drop_stores(self, request_id: int) -> list[StoreJob]:
        dropped = [job for job in self.stores if job.request_id == request_id]
        self.stores = [job for job in self.stores if job.request_id != request_id]
        return dropped

    def empty_loads(self, request_id: int) -> list[tuple[LoadJob, LoadJob]]:
        """(as planned, as it will be told). Upstream waits for a load of the request, so it is told all the same."""
        emptied = [(job, job._replace(blocks=(), slots=())) for job in self.loads if job.request_id == request_id]
        jobs = {job.job: job for _, job in emptied}
        self.loads = [jobs.get(job.job, job) for job in self.loads]
        return emptied


class Ended(NamedTuple):
    """A job that has ended, on one rank or, once agreed, on all of them."""

    job: int
    error: str  # empty: every byte is where it should be
    bad_slots: tuple[int, ...] = ()  # of the host pool, where a load found something else than had been stored
    no_room: bool = False  # nothing is wrong: more transfers waited than may wait


class Late(NamedTuple):
    """What is told outside of any step, for there may be no other: to requests that have finished, or wait to load."""

    step: Step = Step()
    closed: tuple[int, ...] = ()  # requests for which nothing more will be told
