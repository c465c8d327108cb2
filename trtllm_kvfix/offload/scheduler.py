"""The scheduler side: which blocks go to the host tier and which come back, decided once for all ranks.

A block is stored once the kernels of its last token have been given to the device, as the report of the following
iteration tells. So a step that was scheduled and then not run has promised nothing.
"""

import logging
from itertools import count, takewhile
from typing import Any

import numpy as np

from trtllm_kvfix.blocks.host_index import HostIndex, Pins
from trtllm_kvfix.blocks.identity import identity_of, tokens_of
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.in_use import InUse
from trtllm_kvfix.offload.link import Link
from trtllm_kvfix.offload.plan import OVER, Ended, Late, LoadJob, NextStep, Step, StoreJob
from trtllm_kvfix.offload.requests import LiveRequest, PendingLoad, added_blocks, tokens_computed
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.tally import Tally
from trtllm_kvfix.offload_section import OffloadSettings

_log = logging.getLogger("trtllm_kvfix.offload")
FAILED_IN_A_ROW_MAX = 32
PRIORITY_DEFAULT = 35  # upstream's, for blocks without a retention range


class OffloadScheduler:
    """Called by the executor's thread alone. Jobs and requests are known by their numbers."""

    def __init__(self, settings: OffloadSettings, tokens_per_block: int, link: Link, switches: Switches) -> None:
        self._settings = settings
        self._tokens_per_block = tokens_per_block
        self._link = link
        self._switches = switches
        self.tally = Tally(settings.log_every_requests)
        self._index: HostIndex | None = None
        self._numbers = count(1)
        self._live: dict[int, LiveRequest] = {}
        self._finishing: dict[int, LiveRequest] = {}  # keep their blocks until what they still lack here is on its way
        link.plan_late, link.request_over = self.plan_late, self.request_over
        self._stores: dict[int, StoreJob] = {}  # not ended on all ranks
        self._loads: dict[int, tuple[LoadJob, PendingLoad]] = {}
        self._sources = InUse()
        self._next = NextStep()
        self._failed_in_a_row = {"store": 0, "load": 0}

    @property
    def index(self) -> HostIndex | None:
        """Made once the worker side knows how many blocks fit."""
        if self._index is None and self._link.slots is not None:
            self._index = HostIndex(self._link.slots, self._tokens_per_block)
        return self._index

    def require_tier(self) -> None:
        if self._link.slots is None:
            raise KvfixError("upstream starts serving, and has not told the connector's worker where the cache lies")

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Pin what the host tier adds to what the device has. The request is loading, or it is not, from here on."""
        self._take_ended()
        before = self._live.get(request.request_id)
        identity = identity_of(request)
        if before is not None:
            self._release_load(before)
        if identity is None:
            self._live.pop(request.request_id, None)
            self.tally.opaque(request.request_id)
            return 0, False
        live = LiveRequest(request.request_id, identity, tokens_of(request), frozen=before is not None)
        live.computed = num_computed_tokens
        if before is not None:
            live.jobs = before.jobs
        self._live[live.request_id] = live
        live.load = self._find_load(live, num_computed_tokens)
        tokens = live.load.tokens if live.load else 0
        self.tally.looked_up(len(live.tokens), num_computed_tokens, tokens)
        return tokens, live.load is not None

    def update_state_after_alloc(self, request: Any, blocks: list[list[int]]) -> None:
        """`blocks` of each layer group. Upstream may have got room for less than it was promised, or for nothing."""
        live = self._live.get(request.request_id)
        if live is None:
            self._sources.about_to_be_written(blocks)
            return
        live.blocks = blocks
        # All that will be written, by a load or by computing: of a request that comes back, no report tells it again.
        first = live.computed // self._tokens_per_block
        self._sources.about_to_be_written([group[first:] for group in blocks])
        load = live.load
        if load is None or load.job is not None:
            return
        load.job = next(self._numbers)
        slots = load.pins.slots[: max(live.allocated - load.first, 0)]
        end = load.first + len(slots)
        # The device may have a part of the first block, which is written whole: a load that fails takes it along.
        position = load.first * self._tokens_per_block
        job = LoadJob(load.job, live.request_id, live.part(load.first, end), slots, position)
        self._loads[job.job] = job, load
        self._sources.add(job)
        self._next.loads.append(job)

    def cancel_load(self, request: Any, start: int) -> None:
        """Upstream will not use what lies behind `start`. It may wait for a load all the same: then one of nothing."""
        live = self._live.get(request.request_id)
        load = live.load if live is not None else None
        if load is not None and load.job is None and start <= load.position and self._index is not None:
            self._index.unpin(load.pins)
            load.pins = Pins((), (), ())

    def request_reset(self, request: Any) -> None:
        """Its blocks are gone, and it will begin again as a new one."""
        self.request_over(request.request_id, blocks_stay=True)

    def request_over(self, request_id: int, blocks_stay: bool) -> None:
        """Upstream ends it, perhaps without `request_finished`. Unless its blocks stay until no transfer uses them, no
        transfer begins that has not been told yet."""
        live = self._live.pop(request_id, None)
        if live is not None:
            self._release_load(live)
        if blocks_stay:
            return
        if request_id in self._finishing:
            self._finishing[request_id].blocks = []  # then it has nothing to store, and is told as closed
        for store in self._next.drop_stores(request_id):
            self._end_store(Ended(store.job, OVER, no_room=True))
        for planned, empty in self._next.empty_loads(request_id):
            self._sources.remove(planned)
            self._loads[planned.job] = empty, self._loads[planned.job][1]

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        self._take_ended()
        if self._switches.read() and self._index is not None:
            self._index.drop()
            self._failed_in_a_row = {"store": 0, "load": 0}
            counters.offload_given_up.put(0)
        if scheduler_output is not None:
            for data in scheduler_output.new_requests:
                self._report(data, is_new=True)
            for data in scheduler_output.cached_requests:
                self._report(data, is_new=False)
        return self._next.take(self._sources.take_fences())

    def request_finished(self, request: Any, blocks: list[list[int]]) -> bool:
        """True: blocks of the request are in use by a transfer until the worker side says otherwise."""
        self._take_ended()
        live = self._live.pop(request.request_id, None)
        if live is None:
            return False
        self.tally.finished(self._index)
        if live.load is not None and live.load.job is not None:
            # 1.1 tells of requests that are cancelled while they load. What we save it stores for reuse, loaded or not.
            return False
        self._release_load(live)
        live.take(tokens_of(request), blocks)
        live.computed = tokens_computed(request, live)
        if self._plan_store(live) and not live.jobs:
            return False
        self._finishing[live.request_id] = live
        return True

    def plan_late(self) -> Late:
        """Asked in every iteration in which a finished request keeps its blocks."""
        self._take_ended()
        closed = tuple(request_id for request_id, live in self._finishing.items() if self._plan_store(live))
        for request_id in closed:
            del self._finishing[request_id]
        return Late(self._next.take(self._sources.take_fences()), closed)

    def _works(self, direction: str) -> bool:
        """Whether transfers are planned: an operator may say no, and where none succeeds there is no use in it."""
        wanted = self._switches.store if direction == "store" else self._switches.load
        return wanted and self._failed_in_a_row[direction] < FAILED_IN_A_ROW_MAX

    def _note_end(self, direction: str, ended: Ended) -> None:
        if ended.no_room or ended.bad_slots:
            return  # says nothing of the next one
        self._failed_in_a_row[direction] = self._failed_in_a_row[direction] + 1 if ended.error else 0
        if self._failed_in_a_row[direction] == FAILED_IN_A_ROW_MAX:
            counters.offload_given_up.add()
            _log.error(
                "no more %ss: %d failed in a row, the last with: %s", direction, FAILED_IN_A_ROW_MAX, ended.error
            )

    def _find_load(self, live: LiveRequest, num_computed_tokens: int) -> PendingLoad | None:
        index = self.index
        if index is None or not self._works("load"):
            return None
        tokens = np.array(live.tokens, np.int32)
        held = index.blocks_held(live.identity, tokens)
        first = num_computed_tokens // self._tokens_per_block
        if held - first < self._settings.min_reuse_blocks or held * self._tokens_per_block <= num_computed_tokens:
            return None
        pins = index.pin(live.identity, tokens, first, held)
        gained = (first + len(pins.slots)) * self._tokens_per_block - num_computed_tokens
        if len(pins.slots) < self._settings.min_reuse_blocks or gained <= 0:
            index.unpin(pins)
            return None
        return PendingLoad(pins, first, num_computed_tokens, gained)

    def _report(self, data: Any, *, is_new: bool) -> None:
        live = self._live.get(data.request_id)
        blocks = added_blocks(data)
        if live is None:
            self._sources.about_to_be_written(blocks)
            return
        priorities = getattr(data, "priorities", None) or ()
        if is_new:
            live.take(data.new_tokens, blocks)
            live.priorities = list(priorities)
        else:
            live.extend(data.new_tokens, blocks, priorities)
            self._fence_growth(live, data)
        # What lies before this step's position is only read.
        first = data.computed_position // self._tokens_per_block if is_new else 0
        self._sources.about_to_be_written([group[first:] for group in blocks])
        live.computed = data.computed_position
        self._plan_store(live)

    def _fence_growth(self, live: LiveRequest, data: Any) -> None:
        """Which blocks a request that came back grows into, upstream does not tell, up to as many as it had before."""
        # The device is up to an iteration ahead of what the host reports.
        reach = -(-(data.computed_position + 2 * data.num_scheduled_tokens) // self._tokens_per_block)
        if live.frozen and reach > max(live.grown, live.allocated):
            live.grown = reach
            self._sources.any_about_to_be_written()

    def _plan_store(self, live: LiveRequest) -> bool:
        """Give what the host tier lacks of the request to a job. False: later, another job sends the same blocks."""
        index = self.index
        whole = live.whole_blocks(self._tokens_per_block)
        if index is None or not self._works("store") or whole <= live.covered:
            return True
        priorities = [*live.priorities[:whole], *[PRIORITY_DEFAULT] * (whole - len(live.priorities))]
        worth = sum(1 for _ in takewhile(lambda one: one >= self._settings.offload_priority_min, priorities))
        if worth <= live.covered:
            live.covered = whole
            return True
        tokens = live.prefix(worth, self._tokens_per_block)
        held, on_its_way = index.missing(live.identity, tokens)
        if on_its_way:
            return False
        live.covered = whole
        if held < worth:
            self._store(index, live, worth, held, priorities if live.priorities else [])
        return True

    def _store(self, index: HostIndex, live: LiveRequest, worth: int, held: int, priorities: list[int]) -> None:
        job = next(self._numbers)
        tokens = live.prefix(worth, self._tokens_per_block)
        claim = index.begin_store(job, live.identity, tokens, priorities[:worth])
        if claim is None:
            self.tally.dropped(worth - held)
            return
        store = StoreJob(job, live.request_id, live.part(claim.first, worth), claim.slots)
        self._stores[job] = store
        self._sources.add(store)
        live.jobs.add(job)
        self._next.stores.append(store)

    def _release_load(self, live: LiveRequest) -> None:
        load, live.load = live.load, None
        if load is not None and load.job is None and self._index is not None:
            self._index.unpin(load.pins)

    def _take_ended(self) -> None:
        for ended in self._link.take_ended():
            if ended.job in self._stores:
                self._end_store(ended)
            else:
                self._end_load(ended)

    def _end_store(self, ended: Ended) -> None:
        store = self._stores.pop(ended.job)
        self._sources.remove(store)
        assert self._index is not None
        self._index.end_store(ended.job, arrived=not ended.error)
        self.tally.stored(len(store.slots), ended)
        self._note_end("store", ended)
        for live in (self._live.get(store.request_id), self._finishing.get(store.request_id)):
            if live is not None:
                live.jobs.discard(ended.job)

    def _end_load(self, ended: Ended) -> None:
        load_job, load = self._loads.pop(ended.job)
        self._sources.remove(load_job)
        assert self._index is not None
        self._index.condemn(load.pins, ended.bad_slots)
        self._index.unpin(load.pins)
        self.tally.loaded(len(load_job.slots), ended)
        self._note_end("load", ended)
        live = self._live.get(load_job.request_id)
        if live is not None and live.load is load:
            live.load = None
