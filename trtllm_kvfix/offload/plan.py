"""What the scheduler side sends to the worker sides: plain values, the same on every rank, that travel by broadcast.

`blocks` of a job are those of the first layer group, one for each slot, then those of the next. A host slot holds the
parts of a block from all groups.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

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


Job: TypeAlias = StoreJob | LoadJob | FetchJob | PutJob


def places(job: StoreJob | LoadJob) -> Iterator[tuple[int, int]]:
    """(layer group, block) of all that the job reads or writes on the device."""
    size = len(job.slots)
    return ((at // size, block) for at, block in enumerate(job.blocks))


class Step(NamedTuple):
    """The transfers of one iteration. `fences` are jobs that end before anything else of the iteration begins,
    `taken_back` those that were sent and must not begin."""

    stores: tuple[StoreJob, ...] = ()
    loads: tuple[LoadJob, ...] = ()
    fences: tuple[int, ...] = ()
    taken_back: tuple[int, ...] = ()
    fetches: tuple[FetchJob, ...] = ()
    puts: tuple[PutJob, ...] = ()

    def transfers(self) -> list[StoreJob | LoadJob]:
        return [*self.stores, *self.loads]

    def __bool__(self) -> bool:
        return any(tuple(self))


def step_of(jobs: Iterable[Job], fences: tuple[int, ...] = (), taken_back: tuple[int, ...] = ()) -> Step:
    """The jobs of each kind, in the order in which they come."""
    of: dict[type[Job], list[Any]] = {StoreJob: [], LoadJob: [], FetchJob: [], PutJob: []}
    for job in jobs:
        of[type(job)].append(job)
    stores, loads, fetches, puts = map(tuple, of.values())
    return Step(stores, loads, fences, taken_back, fetches, puts)


class Ended(NamedTuple):
    """A job that has ended, on one rank or, once agreed, on all of them."""

    job: int
    error: str  # empty: every byte is where it should be
    bad_slots: tuple[int, ...] = ()  # host slots in which a load found something else than had been stored
    no_room: bool = False  # nothing is wrong: more transfers waited than may wait


class Late(NamedTuple):
    """What is sent outside any step, since there may be none: for requests that have finished, or wait to load."""

    step: Step = Step()
    closed: tuple[int, ...] = ()  # requests for which nothing more will be sent
