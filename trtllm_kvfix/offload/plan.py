"""What the scheduler side tells the worker sides: plain values, the same on every rank, that travel by broadcast.

`blocks` of a job are those of the first layer group, one for each slot, then those of the next. A host slot holds what
all groups have of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


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


def places(job: StoreJob | LoadJob) -> Iterator[tuple[int, int]]:
    """(layer group, block) of all that the job reads or writes on the device."""
    return ((at // len(job.slots), block) for at, block in enumerate(job.blocks))


@dataclass(frozen=True)
class Step:
    """The transfers of one iteration. `fences` are jobs that end before anything else of the iteration begins."""

    stores: tuple[StoreJob, ...] = ()
    loads: tuple[LoadJob, ...] = ()
    fences: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.stores or self.loads or self.fences)


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
