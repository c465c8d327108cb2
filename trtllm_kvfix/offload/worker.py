"""The worker side of one rank: gives transfers out behind the stream that computes, and agrees with the other ranks on
which of them are over."""

from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import Any

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import Device, HostPool
from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.offload.host_tier import warn_where_it_is_small
from trtllm_kvfix.offload.layout import Layout, LayoutMismatch, pool_of, require_alike
from trtllm_kvfix.offload.link import Link
from trtllm_kvfix.offload.partial_copies import PART as COPIES
from trtllm_kvfix.offload.plan import OVER, Ended, Late, LoadJob, Step, StoreJob
from trtllm_kvfix.offload.ranks import Ranks, agreed, together
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.offload.transfers import Transfers
from trtllm_kvfix.offload_section import OffloadSettings

MakePool = Callable[[Device, int, Ranks], HostPool]  # device, bytes of a block, ranks


class OffloadWorker:
    """Called by the executor's thread alone."""

    def __init__(
        self,
        settings: OffloadSettings,
        link: Link,
        ranks: Ranks,
        make_pool: MakePool,
        *,
        at_start: Ranks | None = None,
        saved_max: int | None = None,
        report: TierReport | None = None,
    ) -> None:
        self._settings = settings
        self._link = link
        self._ranks = ranks
        self._at_start = at_start or ranks  # those that share the machine; they need not share requests
        self._make_pool = make_pool
        self._saved_max = saved_max  # requests that are told as saved at a time; None: all
        self._report = report or TierReport(rank=ranks.rank)
        self._layout: Layout | None = None
        self._transfers: Transfers | None = None
        self._stream: int | None = None
        self._before_loads: Callable[[], None] = lambda: None
        self._steps: list[Step] = []  # told, not begun
        self._owner: dict[int, int] = {}  # jobs that not all ranks have ended -> their requests
        self._loads: dict[int, LoadJob] = {}  # those of them that load, by request
        self._reports: dict[int, list[Ended]] = {}  # told by some ranks, not by all
        self._saving: set[int] = set()  # requests that have finished and keep their blocks
        self._closed: set[int] = set()  # those of them for which everything has been told
        self._loading: set[int] = set()  # requests that wait for a load
        self._since: dict[int, float] = {}  # when those of them began to wait whose load has not been told
        self._told: set[int] = set()  # those of them whose load has been told
        self.recompute: dict[int, int] = {}  # request -> first token that its load did not bring
        self._reserved: dict[int, LoadJob] = {}  # loads of reservations, by job, that not all ranks have ended
        self._reserved_over: list[int] = []  # reservations whose load is over on all ranks
        self.reserved_to_recompute: dict[int, int] = {}  # reservation -> its request, where the load did not come

    def register(self, device: Device, tensors: Iterable[Any]) -> None:
        """One tensor for each pool of a cache without layer groups."""
        self.register_layout(device, lambda: Layout([pool_of(tensor) for tensor in tensors]))

    def register_layout(self, device: Device, describe: Callable[[], Layout]) -> None:
        """Build the host tier for these pools, or find that it was built for the like."""
        layouts = agreed(self._at_start, lambda: self._unchanged(describe()))
        layout = layouts[self._at_start.rank]
        if self._ranks.size > 1:
            require_alike(layouts)
        if self._transfers is None:
            pool = self._make_pool(device, layout.block_bytes, self._at_start)
            self._transfers = together(
                self._at_start, lambda: Transfers(device, layout, pool, self._settings, self._report), Transfers.close
            )
            requested = self._settings.host_bytes or pool.bytes
            self._report.built(slots=pool.slots, requested=requested, mapped=pool.bytes, pinned=pool.bytes_pinned)
            self._link.slots = min(self._ranks.gather(pool.slots))
            if self._ranks.rank == 0:
                device_blocks = min(pool.blocks for pool in layout.pools)
                warn_where_it_is_small(self._link.slots, device_blocks, layout.block_bytes)
        self._layout = layout

    def bind(self, step: Step | None) -> None:
        """A step may be told and followed by another before it can begin; none is lost."""
        if not step:
            return
        self._steps.append(step)
        for store in step.stores:
            self._owner[store.job] = store.request_id
        for load in step.loads:
            self._owner[load.job] = load.request_id
            if load.reservation is None:
                self._loads[load.request_id] = load
                self._told.add(load.request_id)
            else:
                self._reserved[load.job] = load
        self._take_back(step.taken_back)

    def start(self, stream: int, before_loads: Callable[[], None] = lambda: None) -> None:
        """Everything that `stream` has been given so far comes before the transfers of the steps that were told.

        `before_loads` has the stream wait for what must be over before blocks are loaded; called in this thread.
        """
        self._stream, self._before_loads = stream, before_loads
        self._begin()

    def finished(
        self, finished_request_ids: Iterable[int], loading_request_ids: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Requests whose blocks nothing uses any more, and those whose load is over, on all ranks."""
        self._saving.update(finished_request_ids)
        for request_id in loading_request_ids:
            self._loading.add(request_id)
            self._since[request_id] = monotonic()
        if self._saving - self._closed or self._loading - self._told:
            self._take_late()
        self._begin()
        if self._is_running():
            for report in agreed(self._ranks, self._ended_here):
                for ended in report:
                    self._reports.setdefault(ended.job, []).append(ended)
            self._agree()
        return self._take_saved(), self._take_loaded()

    def take_reserved(self) -> list[int]:
        """Reservations whose loads are over, on all ranks."""
        over, self._reserved_over = self._reserved_over, []
        return over

    def requests_in_transfer(self) -> Collection[int]:
        """Whose transfers not all ranks have ended."""
        return self._owner.values()

    def request_over(self, request_id: int) -> None:
        """Upstream ends it. Its blocks stay, unless one of the following calls comes after this."""
        self._link.request_over(request_id, True)

    def end_transfers(self, request_id: int) -> None:
        """On every rank, before upstream gives the blocks of a request away. Nobody is told of its load any more."""
        together(self._ranks, lambda: self.end_transfers_here(request_id))
        self._loads.pop(request_id, None)
        self._reserved = {job: load for job, load in self._reserved.items() if load.request_id != request_id}
        self._since.pop(request_id, None)
        self._loading.discard(request_id)
        self._told.discard(request_id)

    def end_transfers_here(self, request_id: int) -> None:
        """What has begun is waited for; nothing else begins."""
        self._link.request_over(request_id, False)
        if self._transfers is None:
            return
        self._refuse(lambda job: job.request_id == request_id)
        self._transfers.wait_for([job for job, owner in self._owner.items() if owner == request_id])

    def _take_back(self, jobs: Collection[int]) -> None:
        """Of reservations that upstream accepted and does not want any more; it has let none of them begin."""
        if jobs:
            self._refuse(lambda job: job.job in jobs)
        for job in jobs:
            self._reserved.pop(job, None)

    def _refuse(self, which: Callable[[StoreJob | LoadJob], bool]) -> None:
        """Of what was told and has not begun."""
        for at, step in enumerate(self._steps):
            told: list[StoreJob | LoadJob] = [*step.stores, *step.loads]
            refused = [job for job in told if which(job)]
            if refused and self._transfers is not None:
                self._transfers.refuse(refused, OVER, no_room=True)
                self._steps[at] = step.without(refused)

    def close(self) -> bool:
        """False: the device kept something, and with it the memory."""
        transfers, self._transfers = self._transfers, None
        return transfers is None or transfers.close()

    def _unchanged(self, layout: Layout) -> Layout:
        if self._transfers is not None and self._layout is not None and layout.pools != self._layout.pools:
            raise LayoutMismatch(f"the host tier was built for {self._layout.pools}, now {layout.pools}")
        return layout

    def _is_running(self) -> bool:
        """The same on all ranks: whether they meet to agree."""
        return bool(self._owner)

    def _ended_here(self) -> list[Ended]:
        return [] if self._transfers is None else self._transfers.take_ended()

    def _take_late(self) -> None:
        late = agreed(self._ranks, self._late)[0]  # the scheduler side is on rank 0
        self.bind(late.step)
        self._closed.update(late.closed)

    def _late(self) -> Late:
        limit_s = self._settings.transfer_timeout_s
        for request_id in self._loading - self._told:
            if monotonic() - self._since[request_id] > limit_s:
                raise KvfixError(
                    f"request {request_id} has waited for a load for more than kvfix.offload.transfer_timeout_s, "
                    f"{limit_s:g} s, and none was planned: upstream did not tell where its blocks lie"
                )
        return self._link.plan_late()

    def _begin(self) -> None:
        if not self._steps or self._stream is None:
            return
        transfers = self._transfers
        if transfers is None:
            raise KvfixError("transfers were planned before the pools of the device were registered")
        steps, self._steps = self._steps, []
        fences = [job for step in steps for job in step.fences]
        if fences:  # rare; a rank whose wait failed must still enter the forward pass with the others
            together(self._ranks, lambda: transfers.wait_for(fences))
        if any(step.loads for step in steps):
            with guarded(COPIES) as tried:
                self._before_loads()
            if tried.failed:
                steps = [self._computing_instead(transfers, step) for step in steps]
        transfers.begin(steps, self._stream)

    def _computing_instead(self, transfers: Transfers, step: Step) -> Step:
        transfers.refuse(step.loads, "upstream's own copies into blocks could not be waited for")
        return step.without(step.loads)

    def _agree(self) -> None:
        for job, reports in [item for item in self._reports.items() if len(item[1]) == self._ranks.size]:
            del self._reports[job]
            self._end(job, reports)

    def _end(self, job: int, reports: list[Ended]) -> None:
        """What each rank says of it."""
        request_id = self._owner.pop(job)
        ended = summed_up(job, reports)
        load = self._loads.get(request_id)
        if load is not None and load.job == job:
            del self._loads[request_id]
            position = load.position if ended.error else load.until
            if position is not None:
                self.recompute[request_id] = position
        reserved = self._reserved.pop(job, None)
        if reserved is not None and reserved.reservation is not None:
            self._reserved_over.append(reserved.reservation)
            if ended.error or not reserved.slots:
                self.reserved_to_recompute[reserved.reservation] = request_id
        if self._ranks.rank == 0:
            self._link.ended.append(ended)

    def _take_saved(self) -> list[int]:
        over = (self._saving & self._closed).difference(self._owner.values())
        saved = sorted(over)[: self._saved_max]
        self._saving.difference_update(saved)
        self._closed.difference_update(saved)
        return saved

    def _take_loaded(self) -> list[int]:
        # A request whose load was never told waits: what its blocks hold is nobody's.
        loaded = (self._loading & self._told) - self._loads.keys()
        self._loading -= loaded
        for request_id in loaded:
            self._since.pop(request_id, None)
        self._told -= loaded
        return sorted(loaded)


def summed_up(job: int, reports: Sequence[Ended]) -> Ended:
    error = next((one.error for one in reports if one.error), "")
    bad = tuple(sorted({slot for one in reports for slot in one.bad_slots}))
    return Ended(job, error, bad, bool(error) and all(one.no_room for one in reports if one.error))
