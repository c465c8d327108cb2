"""Blocks of the device that running transfers read or write.

Upstream may take a block away during a transfer, and give it to another request. Upstream then reports this request.
Whatever is about to write its blocks must wait for the transfer: a fence.
"""

from collections.abc import Sequence

from trtllm_kvfix.offload.ledger import Ledger
from trtllm_kvfix.offload.plan import LoadJob, StoreJob, places


class InUse:
    """One thread uses this: the scheduler's."""

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
        """`blocks` of each layer group."""
        if not self._jobs:
            return
        for group, numbers in enumerate(blocks):
            for block in numbers:
                self._fence(self._jobs.get((group, block), ()))

    def any_about_to_be_written(self) -> None:
        """All jobs, if upstream does not report which blocks."""
        for jobs in self._jobs.values():
            self._fence(jobs)

    def _fence(self, jobs: tuple[int, ...]) -> None:
        for number in jobs:
            self._ledger.fence(number)
