"""The scheduler side: which blocks go to the host tier and which come back, decided once for all ranks.

A block is stored when the kernels of its last token have been given to the device, which the report of the following
iteration shows. So a step that was scheduled and then not run has promised nothing.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from trtllm_kvfix.blocks.identity import identity_of, tokens_of
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.ledger import OVER, Ended, InUse, Late, Link, LoadJob, Record, Step, StoreJob
from trtllm_kvfix.offload.policy import PendingLoad, Policy, Store, policy_of
from trtllm_kvfix.offload.requests import LiveRequest, Loads, added_blocks, opened, tokens_computed
from trtllm_kvfix.offload.switches import Directions, Switches
from trtllm_kvfix.offload.tier_report import Tally
from trtllm_kvfix.offload_section import OffloadSettings


class Shared(NamedTuple):
    """The parts of the scheduler side that a store behind the host tier uses as well."""

    settings: OffloadSettings
    tokens_per_block: int
    link: Link
    directions: Directions
    loads: Loads


class Behind(Store[LiveRequest], Protocol):
    """The scheduler side of a store behind the host tier. Its own jobs end with `end`."""

    def tick(self, scheduler_output: Any) -> None:
        """Called in every iteration, with the report of its step if there is one."""
        ...

    def hold_back(self, index: TierIndex | None, waiting: Sequence[Any], active: Sequence[Any]) -> list[int]:
        """Return the waiting requests that must not start yet."""
        ...

    def meet(self, live: LiveRequest) -> None:
        """A request begins: now it gets the names of its blocks."""
        ...

    def brings(self, live: LiveRequest, load: PendingLoad) -> bool:
        """Whether it first brings a part of what the request loads, and then has it loaded."""
        ...

    def plan_of(self, live: LiveRequest, first: int) -> Any:
        """What `stored` needs to know of a store of the request's blocks from `first` on."""
        ...

    def stored(self, plan: Any, slots: tuple[int, ...], *, well: bool) -> None: ...
    def end(self, policy: Policy[LiveRequest], record: Record, ended: Ended) -> None: ...
    def drop(self, request_id: int) -> None:
        """The request's blocks are somebody else's."""
        ...

    def forget_weights(self) -> None: ...


class OffloadScheduler:
    """Called by the executor's thread alone. Jobs and requests are known by their numbers."""

    def __init__(
        self,
        settings: OffloadSettings,
        tokens_per_block: int,
        link: Link,
        switches: Switches,
        make_behind: Callable[[Shared], Behind] | None = None,
    ) -> None:
        self._settings = settings
        self._tokens_per_block = tokens_per_block
        self._link, self._switches = link, switches
        self.tally = Tally(settings.log_every_requests)
        self._policy: Policy[LiveRequest] | None = None
        self._live: dict[int, LiveRequest] = {}
        self._finishing: dict[int, LiveRequest] = {}  # keep their blocks until all are in the host tier or on their way
        link.plan_late, link.request_over = self.plan_late, self.request_over
        link.load_not_awaited = self.load_not_awaited
        self._reported: Any = None  # the last step that upstream reported
        self.ledger = link.ledger
        self._weights_noted = 0  # changes of the weights that are known here
        self._sources = InUse(self.ledger)
        self._loads = Loads(tokens_per_block, self.ledger, self._sources)
        self._directions = Directions(switches, link.weights)
        self.behind: Behind | None = None
        if make_behind is not None:
            self.behind = make_behind(Shared(settings, tokens_per_block, link, self._directions, self._loads))
            link.hold_back = self.hold_back

    @property
    def policy(self) -> Policy[LiveRequest] | None:
        """The policy, made when the worker side knows how many blocks fit."""
        if self._policy is None and self._link.slots is not None:
            self._policy = policy_of(
                self._link.slots, self._tokens_per_block, self._settings.admission,
                blocks_min=self._settings.min_reuse_blocks, store=self.behind,
                store_blocks_min=self._settings.remote.min_reuse_blocks,
            )  # fmt: skip
        return self._policy

    @property
    def index(self) -> TierIndex | None:
        policy = self.policy
        return None if policy is None else policy.index

    def hold_back(self, waiting: Sequence[Any], active: Sequence[Any]) -> list[int]:
        """Return the requests that wait to start and must not yet."""
        self._take_ended()
        return [] if self.behind is None else self.behind.hold_back(self.index, waiting, active)

    def require_tier(self) -> None:
        """Raise if there is no host tier yet. This makes its index, so that the first request need not wait for it."""
        if self.index is None:
            raise KvfixError("upstream starts serving before it has registered the cache with the connector's worker")

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Pin what the host tier adds to what the device has. From here on the request either loads or does not."""
        live = self._look_up(request, num_computed_tokens)
        if live is None:
            return 0, False
        tokens = live.load.tokens if live.load else 0
        self.tally.looked_up(live.length, num_computed_tokens)
        return tokens, live.load is not None

    def reserve_prefix(self, request: Any, num_computed_tokens: int, reservation_id: int) -> tuple[int, bool]:
        """Pin it while upstream still schedules. If upstream does not use it, it asks again in the next iteration."""
        self._loads.are_reserved = True
        live = self._look_up(request, num_computed_tokens)
        if live is None:
            return 0, False
        live.is_counted = False
        if live.load is None:
            return 0, False
        self._loads.reservations.add(reservation_id, live)
        return live.load.tokens, True

    def release_prefix_reservation(self, reservation_id: int, start: int, end: int) -> None:
        self._take_ended()
        self._loads.take_back(reservation_id, start, end)

    def _look_up(self, request: Any, num_computed_tokens: int) -> LiveRequest | None:
        self._take_ended()
        is_back, policy, identity = self._forget(request.request_id), self.policy, identity_of(request)
        if policy is None:  # this request is older than the cache
            return None
        if identity is None:
            if not self._loads.are_reserved:  # then it is counted once it has room
                self.tally.opaque(request.request_id)
            return None
        index = policy.index
        sequence = opened(index, identity)
        had = num_computed_tokens // self._tokens_per_block
        live = LiveRequest(request.request_id, index, sequence, tokens_of(request), had, identity, frozen=is_back)
        live.computed = num_computed_tokens
        self._live[live.request_id] = live
        if self.behind is not None:
            self.behind.meet(live)
        if self._directions.work("load"):
            live.load = policy.find(live, num_computed_tokens)
        return live

    def update_state_after_alloc(self, request: Any, blocks: list[list[int]]) -> None:
        """Note the request's `blocks` of each layer group. There may be less room than was promised, or none."""
        live = self._live.get(request.request_id)
        if live is None:
            if self._loads.are_reserved and self.index is not None and identity_of(request) is None:
                self.tally.opaque(request.request_id)
            self._sources.about_to_be_written(blocks)
            return
        live.blocks = blocks
        # All blocks that a load or a step will write: for a request that returns, no report names them again.
        first = live.computed // self._tokens_per_block
        self._sources.about_to_be_written([group[first:] for group in blocks])
        load = live.load
        if not live.is_counted:
            live.is_counted = True
            self.tally.looked_up(live.length, live.computed)
        if load is None or load.job is not None or load.reservation is not None:
            return
        if self.behind is None or not self.behind.brings(live, load):
            self._loads.place(live, load)

    def cancel_load(self, request: Any, start: int) -> None:
        """Upstream will not use what lies behind `start`. If it waits for a load all the same, that load is empty."""
        live = self._live.get(request.request_id)
        load = live.load if live is not None else None
        if live is not None and load is not None and load.job is None and start <= load.position:
            load.empty(live.index)

    def request_reset(self, request: Any) -> None:
        """The request's blocks are gone, and it will begin again as a new one."""
        self.request_over(request.request_id, blocks_stay=True)

    def request_over(self, request_id: int, blocks_stay: bool) -> None:
        """Upstream ends the request, perhaps without `request_finished`. Unless its blocks stay until no transfer uses
        them, a transfer that has not been sent does not begin."""
        self._forget(request_id)
        if blocks_stay:
            return
        if self.behind is not None:
            self.behind.drop(request_id)
        if request_id in self._finishing:
            self._finishing[request_id].blocks = []  # then it has nothing to store, and is sent as closed
        for store in self.ledger.take_out(request_id, StoreJob):
            self._end(store, Ended(store.number, OVER, no_room=True))
        self._loads.empty(request_id)

    def load_not_awaited(self, request_id: int) -> None:
        """Upstream waits for no load of this request any more. One that no rank has received is not sent."""
        for load in self.ledger.take_out(request_id, LoadJob):
            self._end(load, Ended(load.number, OVER, no_room=True))

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        if self.behind is not None:
            self.behind.tick(scheduler_output)
        self._take_ended()
        if self._switches.read() and self._policy is not None:
            self._policy.index.drop()
            self._directions.begin_again()
        if scheduler_output is not None:
            self._take_report(scheduler_output)
        return self.ledger.take_step()

    def _take_report(self, output: Any) -> None:
        """Upstream may report a step a second time, without the part that it has taken back."""
        if output is not self._reported:
            for data in output.new_requests:
                self._begin(data)
            for data in output.cached_requests:
                self._go_on(data)
        self._reported = output
        for accepted in getattr(output, "prefix_loads", ()):
            self._loads.accept(accepted)

    def request_finished(self, request: Any, blocks: list[list[int]]) -> bool:
        """Return whether the request keeps its blocks: transfers use them until the worker side says otherwise."""
        self._take_ended()
        live = self._live.pop(request.request_id, None)
        if live is None:
            return False
        self.tally.finished(self._policy.index if self._policy is not None else None)
        # 1.1 reports requests that are cancelled while they load. It stores what we save for reuse, loaded or not.
        self._loads.let_go_of_promise(live)
        if live.load is None:
            live.take(tokens_of(request), blocks)
            live.computed = tokens_computed(request, live)
            if not self._plan_store(live) or self.ledger.stores(live.request_id):
                self._finishing[live.request_id] = live
                return True
        live.close()
        return False

    def plan_late(self, waiting: Collection[int] = ()) -> Late:
        """Asked in every iteration in which a finished request keeps its blocks, or others are `waiting` for a load."""
        if self.behind is not None:
            self.behind.tick(None)
        self._take_ended()
        self._loads.plan_forgotten(waiting, self._live)
        closed = tuple(request_id for request_id, live in self._finishing.items() if self._plan_store(live))
        for request_id in closed:
            self._finishing.pop(request_id).close()
        return Late(self.ledger.take_step(), closed)

    def _begin(self, data: Any) -> None:
        """A request runs for the first time, or begins again."""
        live, blocks = self._live.get(data.request_id), added_blocks(data)
        # Blocks before this step's position are only read.
        first = data.computed_position // self._tokens_per_block if live is not None else 0
        self._sources.about_to_be_written([group[first:] for group in blocks])
        if live is not None:
            live.take(data.new_tokens, blocks)
            live.priorities = list(getattr(data, "priorities", None) or ())
            live.computed = data.computed_position
            self._plan_store(live)

    def _go_on(self, data: Any) -> None:
        """Called for every request in every iteration: if nothing is new, it does nothing."""
        live, blocks = self._live.get(data.request_id), added_blocks(data)
        has_grown = any(blocks)
        if has_grown:
            self._sources.about_to_be_written(blocks)
        if live is None:
            return
        if live.frozen:
            # The device is up to an iteration ahead of what the host reports.
            if live.may_have_grown(data.computed_position + 2 * data.num_scheduled_tokens):
                self._sources.any_about_to_be_written()
        elif has_grown:
            live.extend(data.new_tokens, blocks, getattr(data, "priorities", None) or ())
        else:
            live.tail += data.new_tokens
        live.computed = data.computed_position
        if live.computed >= live.due:
            self._plan_store(live)

    def _plan_store(self, live: LiveRequest) -> bool:
        """Give the blocks that the host tier lacks to a job. False: try later, another job sends the same blocks."""
        whole = live.whole_blocks()
        if whole <= live.covered or not self._directions.work("store"):
            return True
        end = live.worth_storing(whole, self._settings.offload_priority_min)
        if end > live.covered:
            assert self._policy is not None
            taken = self._policy.claim(live, end)
            if taken is None:
                return False
            for one in taken:
                if one.slots:
                    self._store(live, one.first, one.slots)
                if one.left or one.is_staged:
                    self.tally.taken(one)
        live.cover(whole)
        return True

    def _store(self, live: LiveRequest, first: int, slots: tuple[int, ...]) -> None:
        store = StoreJob(self.ledger.next_number(), live.request_id, live.part(first, first + len(slots)), slots)
        self._sources.add(store)
        self.ledger.plan(store, None if self.behind is None else self.behind.plan_of(live, first))

    def _forget(self, request_id: int) -> bool:
        """Let go of a request. True if it was known."""
        live = self._live.pop(request_id, None)
        if live is None:
            return False
        self._loads.let_go_of_promise(live)
        live.close()
        return True

    def _take_ended(self) -> None:
        """Apply the ends of jobs, but first a change of the weights, which makes them worth nothing."""
        notes = self._link.weights.notes
        if notes != self._weights_noted:
            self._weights_noted = notes
            self._forget_weights()
        all_ended = self.ledger.take_ended_everywhere()
        for record, ended in all_ended:
            self._end(record, ended)
        if all_ended and self._policy is not None:
            self.tally.show(self._policy.index)

    def _forget_weights(self) -> None:
        """The weights change. Nothing that was computed until now is found again, or becomes a part of what is."""
        for live in [*self._live.values(), *self._finishing.values()]:
            live.outlive_weights()
        self._loads.outdate()
        if self._policy is not None:
            self._policy.index.drop()
        if self.behind is not None:
            self.behind.forget_weights()
        if not self._link.weights.are_changing:
            log.info("upstream forgets all prefixes, as behind a change of the weights: so does the host tier")

    def _end(self, record: Record, ended: Ended) -> None:
        if isinstance(record.job, StoreJob):
            self._end_store(record.job, record.plan, ended)
        elif isinstance(record.job, LoadJob):
            self._end_load(record.job, record.plan, ended)
        else:
            assert self.behind is not None and self._policy is not None
            self.behind.end(self._policy, record, ended)

    def _end_store(self, store: StoreJob, plan: Any, ended: Ended) -> None:
        assert self._policy is not None
        self._sources.remove(store)
        self._policy.stored(store.slots, well=not ended.error)
        self.tally.stored(len(store.slots), ended)
        self._directions.note_end("store", ended)
        if self.behind is not None and plan is not None:
            self.behind.stored(plan, store.slots, well=not ended.error)

    def _end_load(self, job: LoadJob, load: PendingLoad, ended: Ended) -> None:
        assert self._policy is not None
        self._loads.end(job)
        self._policy.loaded(load.slots, ended.bad_slots)
        self.tally.loaded(len(job.slots), ended)
        if job.slots and not ended.error:
            come = (load.first + len(job.slots)) * self._tokens_per_block - load.position
            self.tally.hit(min(come, load.tokens))
        self._directions.note_end("load", ended)
        live = self._live.get(job.request_id)
        if live is not None and live.load is load:
            live.load = None
