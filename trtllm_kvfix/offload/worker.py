"""The worker side of one rank: submits transfers behind the computing stream, and agrees with the other ranks on which
of them are over."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Protocol

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.native import Device, HostPool
from trtllm_kvfix.offload.host_tier import warn_where_it_is_small
from trtllm_kvfix.offload.ledger import (
    OVER,
    Ended,
    FreeJob,
    Late,
    Link,
    LoadJob,
    RankReport,
    Record,
    Step,
    StoreJob,
    Weights,
)
from trtllm_kvfix.offload.patches import OUTDATED, PARTIAL_COPIES, Chooser, guarded
from trtllm_kvfix.offload.tier_report import TierReport
from trtllm_kvfix.offload.transfers import BlockLayout, LayoutMismatch, Transfers, pool_of, require_alike
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import Ranks, agreed, together

MakePool = Callable[[Device, int, Ranks], HostPool]  # device, bytes of a block, ranks

FREES_EVERY = 256  # iterations: whether slots are free again, which nobody waits for


@dataclass
class Loading:
    """A request whose load upstream waits for. The plan of the load or the wait may come first."""

    since: float = inf  # when upstream began to wait, by the clock of `monotonic`
    job: int | None = None  # once its plan has been received
    is_over: bool = False

    @property
    def is_untold(self) -> bool:
        return self.job is None and self.since != inf

    @property
    def is_done(self) -> bool:
        return self.is_over and self.since != inf


class Carrier(Protocol):
    """The worker side of a store behind the host tier, on one rank."""

    chooser: Chooser

    @property
    def is_there(self) -> bool:
        """Whether it carries anything. The answer is the same on all ranks."""
        ...

    def register(self, layout: BlockLayout, pool: HostPool) -> None:
        """Called once, on all ranks, when the host pool has been made."""
        ...

    def look(self) -> None:
        """Called in every iteration."""
        ...

    def rest(self) -> None:
        """Called in an iteration that computes nothing.

        Upstream's loop then turns without a pause until something has come. It lets go of the interpreter often, but
        for a moment: another thread that wakes up for it is late, and begins to wait anew each time. So the thread that
        takes the store's answers may not get its turn for a second, and this one sleeps while answers are out.
        """
        ...

    def bind(self, step: Step) -> None: ...
    def send_puts(self) -> None: ...
    def take_ended(self) -> list[int]:
        """End the jobs of the store that are over on this rank, and return the slots that they have filled."""
        ...

    def close(self, until: float) -> None:
        """Called before the pool is given back."""
        ...


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
        carrier: Carrier | None = None,
    ) -> None:
        self._settings = settings
        self._link = link
        self._ranks = ranks
        self._at_start = at_start or ranks  # ranks that share the machine; they need not share requests
        self._make_pool = make_pool
        self._saved_max = saved_max  # how many requests are reported as saved at a time; None: all
        self._report = report or TierReport(rank=ranks.rank)
        link.report_hits = self._report.hits_are
        self._layout: BlockLayout | None = None
        self._transfers: Transfers | None = None
        self._stream: int | None = None
        self._before_loads: Callable[[], None] = lambda: None
        self._ledger = link.ledger
        self._stores_over = 0  # on all ranks, since the start
        self._outdated: set[int] = set()  # loads that bring nothing, however they end: the same on all ranks
        self._saving: dict[int, bool] = {}  # ended requests that keep their blocks -> no more comes for them
        self._iterations = 0  # the same on all ranks
        self._computes = False  # in this iteration: upstream calls `start` where there is a batch
        self._loading: dict[int, Loading] = {}  # requests that wait for a load, or will
        self.recompute: dict[int, int] = {}  # request -> first token that its load did not bring
        self._reserved_over: list[int] = []  # reservations whose load is over on all ranks
        self.reserved_to_recompute: dict[int, int] = {}  # reservation -> its request, if the load did not come
        self.carrier = carrier
        # Of the requests that upstream's scheduler sees:
        self.choosers: Sequence[Chooser] = () if carrier is None else (carrier.chooser,)
        link.side = self

    def register(self, device: Device, tensors: Iterable[Any]) -> None:
        """Register a cache without layer groups: one tensor for each pool."""
        self.register_layout(device, lambda: BlockLayout([pool_of(tensor) for tensor in tensors]))

    def register_layout(self, device: Device, describe: Callable[[], BlockLayout]) -> None:
        """Build the host tier for these pools, or check that it was built for equal ones."""
        layouts = agreed(self._at_start, lambda: self._unchanged(describe()))
        layout = layouts[self._at_start.rank]
        if self._ranks.size > 1:
            require_alike(layouts)
        if self._transfers is None:
            pool = self._make_pool(device, layout.block_bytes, self._at_start)
            self._transfers = together(
                self._at_start,
                lambda: Transfers(device, layout, pool, self._settings, self._report, self._ledger),
                Transfers.close,
            )
            requested = self._settings.host_bytes or pool.bytes
            self._report.built(slots=pool.slots, requested=requested, mapped=pool.bytes, pinned=pool.bytes_pinned)
            self._link.slots = min(self._ranks.gather(pool.slots))
            if self._ranks.rank == 0:
                device_blocks = min(pool.blocks for pool in layout.pools)
                warn_where_it_is_small(self._link.slots, device_blocks, layout.block_bytes)
            if self.carrier is not None:
                self.carrier.register(layout, pool)
        self._layout = layout

    def bind(self, step: Step | None) -> None:
        """Receive a step. Another may follow before this one can begin, and no step is lost."""
        if not step:
            return
        for job in step.transfers():
            self._ledger.queue(job)
        for number in step.fences:
            self._ledger.hold_up(number)
        for load in step.loads:
            if load.reservation is None:
                self._loading.setdefault(load.request_id, Loading()).job = load.number
        self._take_back(step.taken_back)
        if self.carrier is not None:
            for fetch in step.fetches:
                self._forget_load(fetch.request_id)
            self.carrier.bind(step)

    def _forget_load(self, request_id: int) -> None:
        """Forget a load of an earlier life of the request."""
        loading = self._loading.get(request_id)
        if loading is not None:
            loading.job, loading.is_over = None, False

    def start(self, stream: int, before_loads: Callable[[], None] = lambda: None) -> None:
        """Begin the transfers of the received steps, behind all work that `stream` has been given so far.

        `before_loads` makes the stream wait for what must be over before blocks are loaded; called in this thread.
        """
        self._stream, self._before_loads = stream, before_loads
        self._computes = True
        self._begin()

    def finished(
        self, finished_request_ids: Iterable[int], loading_request_ids: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Return the requests whose blocks are no longer in use, and those whose load is over, on all ranks."""
        if self.carrier is not None:
            self.carrier.look()
            if not self._computes:
                self.carrier.rest()
        self._computes = False
        stores_over = self._stores_over
        for request_id in finished_request_ids:
            self._saving[request_id] = False
        for request_id in loading_request_ids:
            self._loading.setdefault(request_id, Loading()).since = monotonic()
        if not all(self._saving.values()) or any(loading.is_untold for loading in self._loading.values()):
            self._take_late()
        self._begin()
        if self._is_running():
            reports = agreed(self._ranks, lambda: RankReport(self._ended_here(), self._ledger.take_outdated()))
            self._outdated.update(number for report in reports for number in report.outdated)
            for ended in [ended for report in reports for ended in report.ended]:
                self._note(ended)
        told = self._take_saved(), self._take_loaded()
        if self.carrier is not None and self.carrier.is_there and self._stores_over > stores_over:
            self._take_late()  # what has been stored is put now: an engine without requests has no further iteration
            self.carrier.send_puts()
            self._begin()
        return told

    def take_reserved(self) -> list[int]:
        """Return the reservations whose loads are over, on all ranks."""
        over, self._reserved_over = self._reserved_over, []
        return over

    def requests_in_transfer(self) -> Collection[int]:
        """Requests whose transfers have not ended on all ranks."""
        return self._ledger.requests_in_transfer()

    def request_over(self, request_id: int) -> None:
        """Upstream ends the request. Its blocks stay, unless one of the following calls comes after this one."""
        self._link.request_over(request_id, True)

    def end_transfers(self, request_id: int) -> None:
        """Called on every rank before upstream gives away a request's blocks. Its load is no longer reported."""
        together(self._ranks, lambda: self._end_transfers(request_id))
        self._loading.pop(request_id, None)
        for record in self._ledger.transfers_of(request_id):
            record.is_awaited = False

    def _end_transfers(self, request_id: int) -> None:
        self._link.load_not_awaited(request_id)
        self.end_transfers_here(request_id)

    def end_transfers_here(self, request_id: int) -> None:
        """Wait for what has begun; nothing else begins."""
        self._link.request_over(request_id, False)
        if self._transfers is None:
            return
        records = self._ledger.transfers_of(request_id)
        self._refuse(self._transfers, records)
        self._transfers.wait_for([record.number for record in records])

    @property
    def weights(self) -> Weights:
        return self._link.weights

    def end_what_runs(self) -> None:
        """Called before the weights change, by any thread."""
        if self._transfers is not None:
            self._transfers.end_what_runs()

    def _take_back(self, jobs: Collection[int]) -> None:
        """Take back reservations that upstream accepted and no longer needs; it has let none of them begin."""
        records = list(filter(None, map(self._ledger.get, jobs)))
        if self._transfers is not None:
            self._refuse(self._transfers, records)
        for record in records:
            record.is_awaited = False

    def _refuse(self, transfers: Transfers, records: Iterable[Record]) -> None:
        """Refuse the jobs that were received and have not begun."""
        waiting = [record.job for record in records if self._ledger.is_waiting(record)]
        transfers.refuse([job for job in waiting if isinstance(job, LoadJob | StoreJob)], OVER, no_room=True)

    def close(self) -> bool:
        """End within the time of the settings. False: the device kept a transfer, and with it the memory."""
        until = monotonic() + self._settings.shutdown_timeout_s
        if self.carrier is not None:
            self.carrier.close(until)
        transfers, self._transfers = self._transfers, None
        return transfers is None or transfers.close(until)

    def _unchanged(self, layout: BlockLayout) -> BlockLayout:
        if self._transfers is not None and self._layout is not None and layout.pools != self._layout.pools:
            raise LayoutMismatch(f"the host tier was built for {self._layout.pools}, now {layout.pools}")
        return layout

    def _is_running(self) -> bool:
        """Whether the ranks meet to agree. The answer is the same on all of them. Asked in each iteration."""
        self._iterations += 1
        frees_due = self._iterations % FREES_EVERY == 0 and bool(self._ledger.of(FreeJob))
        return self._ledger.is_under_way or frees_due

    def _ended_here(self) -> list[Ended]:
        filled = self.carrier.take_ended() if self.carrier is not None else []
        if filled and self._transfers is not None:
            self._transfers.note_filled(filled)
        return [] if self._transfers is None else self._transfers.take_ended()

    def _take_late(self) -> None:
        late = agreed(self._ranks, self._late)[0]  # the scheduler side is on rank 0
        self.bind(late.step)
        self._saving.update(dict.fromkeys(late.closed, True))

    def _late(self) -> Late:
        limit_s = self._settings.transfer_timeout_s
        untold = {request_id: loading.since for request_id, loading in self._loading.items() if loading.is_untold}
        for request_id, since in untold.items():
            if monotonic() - since > limit_s:
                raise KvfixError(
                    f"request {request_id} has waited for a load for more than kvfix.offload.transfer_timeout_s, "
                    f"{limit_s:g} s, and none was planned: upstream did not report where its blocks are"
                )
        return self._link.plan_late(untold)

    def _begin(self) -> None:
        if self._stream is None:
            return
        ledger = self._ledger
        fences, waiting_loads, waiting_stores = ledger.take_fences(), ledger.waiting(LoadJob), ledger.waiting(StoreJob)
        if not (fences or waiting_loads or waiting_stores):
            return
        transfers = self._transfers
        if transfers is None:
            raise KvfixError("transfers were planned before the pools of the device were registered")
        if fences:  # rare; a rank whose wait failed must still enter the forward pass with the others
            self._refuse(transfers, map(ledger.__getitem__, fences))
            together(self._ranks, lambda: transfers.wait_for(fences))
        loads, stores = list(waiting_loads), list(waiting_stores)
        if loads:
            with guarded(PARTIAL_COPIES) as tried:
                self._before_loads()
            if tried.failed:
                transfers.refuse(loads, "upstream's own copies into blocks could not be waited for")
                loads = []
        transfers.begin(loads, stores, self._stream)

    def _note(self, ended: Ended) -> None:
        """Note the end that a rank reports. Once all ranks have, none of them uses the job's blocks any more."""
        record = self._ledger[ended.job]
        record.ends = (*record.ends, ended)
        if len(record.ends) < self._ranks.size:
            return
        summed = summed_up(record.ends)
        if ended.job in self._outdated:
            self._outdated.remove(ended.job)
            summed = Ended(ended.job, summed.error or OUTDATED, summed.bad_slots, summed.no_room or not summed.error)
        self._ledger.end_everywhere(summed, has_scheduler=self._ranks.rank == 0)
        if isinstance(record.job, StoreJob):
            self._stores_over += 1
        if isinstance(record.job, LoadJob) and record.is_awaited:
            self._end_load(record.job, summed)

    def _end_load(self, load: LoadJob, ended: Ended) -> None:
        if load.reservation is not None:
            self._reserved_over.append(load.reservation)
            if ended.error or not load.slots:
                self.reserved_to_recompute[load.reservation] = load.request_id
            return
        loading = self._loading.get(load.request_id)
        if loading is not None and loading.job == load.number:
            loading.is_over = True
            position = load.position if ended.error else load.until
            if position is not None:
                self.recompute[load.request_id] = position

    def _take_saved(self) -> list[int]:
        in_transfer = self.requests_in_transfer()
        over = [number for number, is_closed in self._saving.items() if is_closed and number not in in_transfer]
        saved = sorted(over)[: self._saved_max]
        for request_id in saved:
            del self._saving[request_id]
        return saved

    def _take_loaded(self) -> list[int]:
        # A request whose load was never planned waits: its blocks hold no valid values.
        loaded = sorted(request_id for request_id, loading in self._loading.items() if loading.is_done)
        for request_id in loaded:
            del self._loading[request_id]
        return loaded


def summed_up(ends: Sequence[Ended]) -> Ended:
    """Join the reports of all ranks about one job."""
    error = next((one.error for one in ends if one.error), "")
    bad = tuple(sorted({slot for one in ends for slot in one.bad_slots}))
    lost = tuple(sorted({slot for one in ends for slot in one.lost_slots}))
    unsure = tuple(sorted({slot for one in ends for slot in one.unsure_slots}))
    no_room = bool(error) and all(one.no_room for one in ends if one.error)
    return Ended(ends[0].job, error, bad, no_room, lost, unsure)
