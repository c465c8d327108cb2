"""The worker side with a remote tier: passes fetches and puts on to this rank's porter, and agrees on their ends."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, HostPool
from trtllm_kvfix.offload.host_tier import text_of
from trtllm_kvfix.offload.layout import Layout
from trtllm_kvfix.offload.ledger import JobState, Record
from trtllm_kvfix.offload.plan import Ended, FetchJob, PutJob, Step
from trtllm_kvfix.offload.remote.arguments import layout_parts
from trtllm_kvfix.offload.remote.keys import root_of
from trtllm_kvfix.offload.remote.messages import Message, Outcome, Outcomes, Put, Spec
from trtllm_kvfix.offload.remote.porter_handle import PorterHandle
from trtllm_kvfix.offload.remote.scheduler import FUSE
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.ranks import Ranks

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDS = ("missing", "full", "changed on its way", "failed")


class StoreHere:
    """The store, as the scheduler side of this process sees it."""

    def __init__(self, porter: PorterHandle, root: bytes, block_bytes: int) -> None:
        self._porter, self.root, self.block_bytes = porter, root, block_bytes

    @property
    def is_up(self) -> bool:
        return self._porter.is_up

    def look(self, keys: tuple[bytes, ...], wait_s: float) -> list[bool] | None:
        return self._porter.look(keys, wait_s)


class RemoteWorker(OffloadWorker):
    """Called by the executor's thread alone."""

    def __init__(self, *args: Any, identity: Mapping[str, str] | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._identity = identity  # of what blocks hold, besides their layout; None: there is no remote tier
        self._make_own_pool, self._make_pool = self._make_pool, self._noting_the_pool
        self._pool: HostPool | None = None
        self._putting: Record | None = None
        self.porter: PorterHandle | None = None
        self.holder: PorterHandle | None = None  # of the segment: nothing that fails in the porter takes it along

    def register_layout(self, device: Device, describe: Callable[[], Layout]) -> None:
        super().register_layout(device, describe)
        if self._identity is None:
            self._report.remote_is("off: the engine's arguments have no name (see the log)")
            return
        if self.porter is not None or self._pool is None or self._layout is None:
            return
        remote, ranks = self._settings.remote, self._ranks
        spec = Spec(
            socket=-1, pool=self._pool.descriptor, block_bytes=self._layout.block_bytes,
            slot_bytes=self._pool.slot_bytes, slots=self._pool.slots, rank=ranks.rank, ranks=ranks.size,
            master=remote.master or "", protocol=remote.protocol, host=remote.host, segment_bytes=0,
        )  # fmt: skip
        self.porter = PorterHandle(spec, remote.timeout_s)
        machines = self._at_start.gather(text_of(BOOT_ID))
        segment_bytes = remote.segment_bytes // machines.count(machines[self._at_start.rank])
        if segment_bytes:
            self.holder = PorterHandle(spec._replace(pool=-1, segment_bytes=segment_bytes), remote.timeout_s)
        kinds = [f"{pool.block_bytes} bytes, {pool.kind}" for pool in self._layout.pools]
        root = root_of({**self._identity, **layout_parts(kinds, ranks.size)})
        if ranks.rank == 0:
            self._link.store = StoreHere(self.porter, root, self._layout.block_bytes)

    def bind(self, step: Step | None) -> None:
        super().bind(step)
        for fetch in step.fetches if step else ():
            self._forget_load(fetch.request_id)
            self._ledger.queue(fetch)
            self._fetch(fetch)
        for put in step.puts if step else ():
            self._ledger.queue(put)

    def finished(
        self, finished_request_ids: Iterable[int], loading_request_ids: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        if self.porter is not None:
            self.porter.end_if_stuck()
            self._report.remote_is(f"{'up' if self.porter.is_up else 'down'}: {self.porter.text}")
        return super().finished(finished_request_ids, loading_request_ids)

    def _close(self, until: float) -> bool:
        """The porter comes before the holder: the pool depends on it."""
        if self.porter is not None and not self.porter.close(left_until(until)) and self._pool is not None:
            self._pool.abandon()  # it may still be written
        if self.holder is not None:
            self.holder.close(left_until(until))
        self._link.store = None
        return super()._close(until)

    def _fetch(self, fetch: FetchJob) -> None:
        if self.porter is not None and self.porter.get(fetch.number, fetch.keys, fetch.slots):
            self._ledger.begin(fetch.number, monotonic())
        else:
            self._ledger.end_here(Ended(fetch.number, "there is no store now"))

    def _forget_load(self, request_id: int) -> None:
        """Forgets a load of an earlier life of the request."""
        loading = self._loading.get(request_id)
        if loading is not None:
            loading.job, loading.is_over = None, False

    def _put_next(self) -> None:
        """One at a time: fetches come before them."""
        if self._putting is not None and self._putting.written is JobState.QUEUED:
            return
        self._putting = None
        waiting = self._ledger.waiting(PutJob)
        while waiting:
            put = next(iter(waiting))
            if self.porter is not None and self.porter.put(put.number, put.keys, put.slots):
                self._putting = self._ledger.begin(put.number, monotonic())
                return
            self._ledger.end_here(Ended(put.number, "there is no store now", no_room=True))

    def _ended_here(self) -> list[Ended]:
        if self.porter is not None:
            counters.offload_remote_up.put(self.porter.is_up)
            if self.porter.error is not None:
                fuse.of(FUSE).blow(f"its thread ended with {self.porter.error}")
            for each in self.porter.take_answered():
                self._ledger.end_here(self._ended(*each))
        self._put_next()
        return super()._ended_here()

    def _ended(self, message: Message, answer: Outcomes) -> Ended:
        job = self._ledger[message.number].job
        nbytes = len(job.slots) * (self._layout.block_bytes if self._layout else 0)
        failed = [outcome for outcome in answer.outcomes if outcome is not Outcome.WHOLE]
        if not failed and not answer.error:
            bytes_, seconds = SUMS[isinstance(message, Put)]
            bytes_.add(nbytes)
            seconds.add(answer.seconds)
            return Ended(job.number, "")
        bad = [
            slot
            for slot, outcome in zip(job.slots, answer.outcomes, strict=False)
            if outcome is Outcome.BAD
        ]  # fmt: skip
        why = answer.error or f"{len(failed)} of {len(job.slots)} blocks are {ENDS[failed[0] - 1]}"
        is_full = bool(failed) and set(failed) == {Outcome.FULL}
        return Ended(job.number, why, tuple(bad), no_room=is_full)

    def _noting_the_pool(self, device: Device, block_bytes: int, ranks: Ranks) -> HostPool:
        self._pool = self._make_own_pool(device, block_bytes, ranks)
        return self._pool


SUMS = {
    False: (counters.offload_remote_fetched_bytes, counters.offload_remote_fetch_seconds),
    True: (counters.offload_remote_put_bytes, counters.offload_remote_put_seconds),
}


def left_until(until: float) -> float:
    return max(until - monotonic(), 0.0)
