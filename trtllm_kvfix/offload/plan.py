"""What the scheduler side tells the worker sides: plain values, the same on every rank, that travel by broadcast.

`blocks` of a job are those of the first layer group, one for each slot, then those of the next. A host slot holds what
all groups have of a block.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

OVER = "its request is over"  # why a transfer never began


class StoreJob(NamedTuple):
    """Blocks of the device that are saved. They belong to the job until it has ended on every rank."""

    number: int
    request_id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]


class LoadJob(NamedTuple):
    """Blocks of a request that are filled while it waits."""

    number: int
    request_id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    position: int  # of the first block that is written: where computing begins if the load fails
    reservation: int | None = None  # upstream's number of it, under which it waits for the end
    until: int | None = None  # where it begins otherwise, if the load brings less than was promised


class FetchJob(NamedTuple):
    """Host slots that are filled from the remote tier, while a request waits."""

    number: int
    request_id: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...]


class PutJob(NamedTuple):
    """Host slots whose blocks go to the remote tier as well."""

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
    `taken_back` those that were told and must not begin."""

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
    """Of each kind in the order in which they come."""
    of: dict[type[Job], list[Any]] = {StoreJob: [], LoadJob: [], FetchJob: [], PutJob: []}
    for job in jobs:
        of[type(job)].append(job)
    stores, loads, fetches, puts = map(tuple, of.values())
    return Step(stores, loads, fences, taken_back, fetches, puts)


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
