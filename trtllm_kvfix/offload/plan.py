"""Messages from the scheduler side to the worker sides: plain values, equal on every rank, sent by broadcast.

`blocks` of a job are those of the first layer group, one for each slot, then those of the next. A host slot holds the
parts of a block from all groups.
"""

from typing import NamedTuple, TypeAlias

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


Job: TypeAlias = StoreJob | LoadJob | FetchJob | PutJob


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


class RankReport(NamedTuple):
    """One rank's message when the ranks meet."""

    ended: list[Ended]
    outdated: tuple[int, ...]  # loads that will have brought nothing, however they end; the scheduler side's rank knows


class Late(NamedTuple):
    """A message outside any step, for requests that have finished or wait to load. There may be no step for them."""

    step: Step = Step()
    closed: tuple[int, ...] = ()  # requests for which nothing more will be sent
