"""The scheduler side: which blocks go to the host tier and which come back, decided once for all ranks.

A block is stored when the kernels of its last token have been given to the device, which the report of the following
iteration shows. So a step that was scheduled and then not run has promised nothing.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trtllm_kvfix.blocks.identity import Identity, identity_of, tokens_of
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters, flight
from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.ledger import (
    OVER,
    Ended,
    FetchJob,
    InUse,
    JobState,
    Late,
    Ledger,
    Link,
    LoadJob,
    Record,
    Step,
    StoreJob,
    Weights,
)
from trtllm_kvfix.offload.policy import PendingLoad, StoreBehind, Taken, TierPolicy, always, policy_of
from trtllm_kvfix.offload.switches import DIRECTIONS, Switches
from trtllm_kvfix.offload.transfers import blocks_by_group, flat
from trtllm_kvfix.offload.worth import HitClasses, HostWorth, Prefill, prompt_tokens_of
from trtllm_kvfix.offload_section import AUTO, OffloadSettings

if TYPE_CHECKING:
    from trtllm_kvfix.offload.remote.keys import KeyChain

PRIORITY_DEFAULT = 35  # upstream's, for blocks without a retention range


@dataclass
class LiveRequest:
    """Its leading blocks are a sequence of the host tier's index, which keeps their tokens; the rest are here."""

    request_id: int
    index: TierIndex
    sequence: int
    tail: list[int]  # tokens behind those that the index has
    had: int  # blocks that the device had when it came
    identity: Identity = field(default_factory=Identity)
    blocks: list[list[int]] = field(default_factory=list)  # of the device: for each layer group, in order of position
    # After preemption, upstream may report additions to blocks that no longer exist. The list is taken again when the
    # request is reported as a new one, or ends; until then nothing is appended to this one.
    frozen: bool = False
    grown: int = 0  # blocks that it may have reached since, while it was frozen
    priorities: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose kernels have been given to the device
    indexed: int = 0  # tokens that the index has
    covered: int = 0  # blocks that are in the host tier, on their way, or not worth storing
    worth: int = sys.maxsize  # blocks from this one on are not worth it
    due: int = field(init=False)  # tokens that must be computed before there is more to cover
    load: PendingLoad | None = None
    is_counted: bool = True  # what it found; for a reservation, once upstream has accepted some of it
    prompt_tokens: int = field(init=False)
    chain: "KeyChain | None" = None  # names its blocks if they go to the remote tier as well
    users: int = 0  # users of the sequence beyond the end of the request
    is_over: bool = False

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tail)
        self.cover(0)

    def take(self, tokens: Sequence[int], blocks: list[list[int]]) -> None:
        """Take over what upstream reports: it is complete."""
        self.tail, self.blocks, self.frozen = list(tokens[self.indexed :]), blocks, False
        if len(tokens) < self.indexed:
            self.worth = 0  # upstream has taken tokens back, and does not report which others it may have put there

    def extend(self, tokens: Iterable[int], blocks: list[list[int]], priorities: Iterable[int] = ()) -> None:
        """`priorities` are those of the added blocks, empty if the request has no retention ranges."""
        if self.frozen:
            return
        self.tail.extend(tokens)
        self.priorities.extend(priorities)
        self.blocks = self.blocks or [[] for _ in blocks]
        for known, added in zip(self.blocks, blocks, strict=True):
            known.extend(added)

    @property
    def length(self) -> int:
        """The number of tokens that are known."""
        return self.indexed + len(self.tail)

    @property
    def allocated(self) -> int:
        """The number of blocks that every layer group has."""
        if len(self.blocks) == 1:  # as in most caches, and asked for each block that is stored
            return len(self.blocks[0])
        return min(map(len, self.blocks), default=0)

    def whole_blocks(self) -> int:
        """The number of blocks whose tokens are all known and computed."""
        known = self.indexed + len(self.tail)
        return min(min(self.computed, known) // self.index.tokens_per_block, self.allocated)

    def prompt_blocks_from(self, first: int) -> int:
        """Count the whole blocks of its prompt from this one on."""
        return max(self.prompt_tokens // self.index.tokens_per_block - first, 0)

    def index_blocks(self, blocks: int) -> None:
        """Move so many blocks from the tail to the index, unless it has them already."""
        more = blocks * self.index.tokens_per_block - self.indexed
        if more > 0:
            self.index.extend(self.sequence, self.tail[:more])
            if self.chain is not None:
                self.chain.extend(self.tail[:more])
            del self.tail[:more]
            self.indexed += more

    def cover(self, blocks: int) -> None:
        self.covered = blocks
        self.due = (blocks + 1) * self.index.tokens_per_block

    def worth_storing(self, blocks: int, priority_min: int) -> int:
        """Count the leading blocks worth storing: all `covered`, and the next ones up to the first of low priority."""
        if not self.priorities and priority_min <= PRIORITY_DEFAULT:
            return min(blocks, self.worth)
        for at in range(self.covered, min(blocks, self.worth)):
            priority = self.priorities[at] if at < len(self.priorities) else PRIORITY_DEFAULT
            if priority < priority_min:
                self.worth = at
                break
        return min(blocks, self.worth)

    def priorities_until(self, end: int) -> list[int]:
        """The priorities of the blocks behind the covered ones. Empty if the request has no retention ranges."""
        if not self.priorities:
            return []
        told = self.priorities[self.covered : end]
        return told + [PRIORITY_DEFAULT] * (end - self.covered - len(told))

    def may_have_grown(self, tokens: int) -> bool:
        """The request grows while it is frozen. Upstream does not report into which blocks, up to as many as it had."""
        reach = -(-tokens // self.index.tokens_per_block)
        is_new = reach > max(self.grown, self.allocated)
        if is_new:
            self.grown = reach
        return is_new

    def part(self, first: int, end: int) -> tuple[int, ...]:
        return part_of(self.blocks, first, end)

    def let_go_of_load(self) -> None:
        """Let go of what it was promised. If that is on its way, it is held until it has arrived."""
        load, self.load = self.load, None
        if load is not None and load.job is None:
            load.empty(self.index)

    def outlive_weights(self) -> None:
        """Its blocks stay its own: some were computed with weights that are gone, and the others follow from them."""
        self.worth, self.chain = 0, None
        if self.load is not None:
            self.load.is_outdated = True

    def close(self) -> None:
        """End the request: nothing more will be looked for or stored."""
        self.let_go_of_load()
        self.is_over = True
        self._close_unused()

    def hold(self) -> None:
        """Keep the sequence until whoever holds it has let it go."""
        self.users += 1

    def let_go(self) -> None:
        self.users -= 1
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_over and not self.users:
            self.index.close(self.sequence)


def opened(index: TierIndex, identity: Identity) -> int:
    """A sequence without tokens."""
    return index.open(lora_id=identity.lora_id, salt=identity.salt, extra_keys=identity.extra_keys)


def part_of(blocks: list[list[int]], first: int, end: int) -> tuple[int, ...]:
    """Blocks `first` to `end` of one layer group, then of the next, in the order of jobs."""
    if len(blocks) == 1:
        return tuple(blocks[0][first:end])
    return tuple([block for group in blocks for block in group[first:end]])


def added_blocks(data: Any) -> list[list[int]]:
    """Return the blocks that a report adds, by layer group: mostly none. With several groups, upstream leaves the flat
    list empty."""
    by_group = getattr(data, "new_block_ids_by_layer_group", None)
    if by_group and len(by_group) > 1:
        return blocks_by_group(by_group)
    return [flat(data.new_block_ids)] if data.new_block_ids else []


def tokens_computed(request: Any, live: LiveRequest) -> int:
    """Count the computed tokens of a request that ends: up to its position in the prompt, then all but the last."""
    position = getattr(request, "context_current_position", None)
    prompt = getattr(request, "prompt_len", None)
    if position is None or prompt is None:
        return live.computed
    return position if position < prompt else live.length - 1


class Loads:
    """What the host tier adds to prompts, pinned from the promise until it has arrived. The executor's thread uses it.

    Upstream asks when a request has room, and reports where its blocks lie. The newest builds reserve while they
    schedule instead (`Reservations`).
    """

    def __init__(self, tokens_per_block: int, ledger: Ledger, in_use: InUse) -> None:
        self.reservations = Reservations(tokens_per_block, ledger)
        self.are_reserved = False  # upstream asks for promises, again and again
        self._tokens_per_block = tokens_per_block
        self._ledger = ledger
        self._in_use = in_use

    def place(self, live: LiveRequest, load: PendingLoad) -> None:
        """Plan the load: the request's blocks are known, and may be fewer than it was promised."""
        load.job = self._ledger.next_number()
        slots = tuple(load.slots[: max(live.allocated - load.first, 0)])
        end = load.first + len(slots)
        # The device may have a part of the first block, which is written whole: a failed load loses this part, too.
        position = load.first * self._tokens_per_block
        until = end * self._tokens_per_block if load.is_short else None
        self.plan(LoadJob(load.job, live.request_id, live.part(load.first, end), slots, position, until=until), load)

    def plan(self, job: LoadJob, load: PendingLoad) -> None:
        load.since = monotonic()
        self._in_use.add(job)
        self._ledger.plan(job, load)
        if load.is_outdated and job.slots:
            self._ledger.outdate(job.number)

    def plan_forgotten(self, waiting: Collection[int], live: Collection[int]) -> None:
        """A request may end between the promise of its load and the report of its blocks, and then it has none.

        Upstream waits for the load all the same: for one that brings nothing.
        """
        forgotten = set(waiting).difference(live)
        if forgotten:
            coming = [*self._ledger.of(LoadJob), *self._ledger.of(FetchJob)]
            forgotten.difference_update(record.job.request_id for record in coming)
        for request_id in sorted(forgotten):
            number = self._ledger.next_number()
            self.plan(LoadJob(number, request_id, (), (), 0), PendingLoad([], 0, 0, 0, job=number))

    def let_go_of_promise(self, live: LiveRequest) -> None:
        """Let go, as the request has ended or begins again. What is on its way to it stays until it has arrived."""
        if live.load is not None and live.load.job is None:
            self.reservations.forget(live.load)
            live.let_go_of_load()

    def accept(self, accepted: Any) -> None:
        """Plan a load that was reserved; upstream may report it more than once."""
        planned = self.reservations.accept(accepted)
        if planned is not None:
            self.plan(*planned)

    def take_back(self, reservation_id: int, start: int, end: int) -> None:
        job = self.reservations.release(reservation_id, start, end)
        if job is not None:
            self._ledger.take_back(job)

    def outdate(self) -> None:
        """Note that the weights have changed. What is on its way, or unknown to some rank, is worth nothing."""
        for record in self._ledger.of(LoadJob):
            if record.job.slots and record.written is not JobState.ENDED_EVERYWHERE:
                self._ledger.outdate(record.number)

    def empty(self, request_id: int) -> None:
        """A load of the request that was not sent does not begin. Upstream waits for it, so it is sent all the same."""
        for record in self._ledger.planned(request_id, LoadJob):
            load = record.job
            assert isinstance(load, LoadJob)
            self._in_use.remove(load)
            record.job = load._replace(blocks=(), slots=())

    def end(self, job: LoadJob) -> None:
        self._in_use.remove(job)


class Reservations:
    """Prefixes that upstream reserves while it schedules, before it knows whether the request gets room.

    The newest KVCacheManagerV2 does so. From `reserve_prefix` on, the reserved blocks of the host tier stay, whole or
    in part, until upstream has released all of them. Upstream names what it accepts in the report of the step, and the
    load begins with that step; until then upstream may still take it back. An accepted load is over when every rank
    says so.

    Upstream continues behind the tokens that it was promised, as with other loads. If they did not come, the request
    gives its cache back and computes its prompt.

    Reservations are known by upstream's numbers. The executor's thread alone uses them.
    """

    def __init__(self, tokens_per_block: int, ledger: Ledger) -> None:
        self._tokens_per_block = tokens_per_block
        self._ledger = ledger  # has those that were accepted
        self._promised: dict[int, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._promised)

    def add(self, reservation_id: int, live: LiveRequest) -> None:
        assert live.load is not None
        live.load.reservation = reservation_id
        self._promised[reservation_id] = live

    def release(self, reservation_id: int, start: int, end: int) -> int | None:
        """Release tokens `start` to `end`: all, or the part at one end. If upstream takes back what it has accepted,
        returns the job that must not begin any more."""
        live = self._promised.get(reservation_id)
        load = live.load if live is not None else None
        if live is None or load is None:  # accepted; or it ended with its request, or has been loaded
            accepted = self._ledger.load_of(reservation_id)
            return None if accepted is None else accepted.number
        kept = (end, load.end) if start <= load.position else (load.position, start)
        self._keep(live, load, *kept)
        if load.tokens == 0:
            del self._promised[reservation_id]
            live.load = None
        return None

    def accept(self, accepted: Any) -> tuple[LoadJob, PendingLoad] | None:
        """Return the load that a report names, or nothing if it was reported before. If the promise ended with its
        request, the load brings nothing: upstream waits for its end."""
        if self._ledger.load_of(accepted.reservation_id) is not None:
            return None
        live = self._promised.pop(accepted.reservation_id, None)
        load = live.load if live is not None else None
        if live is None or load is None:
            load = PendingLoad([], accepted.start // self._tokens_per_block, accepted.start, 0)
        else:
            self._keep(live, load, accepted.start, accepted.end)
        load.job = self._ledger.next_number()
        blocks = part_of(blocks_by_group(accepted.block_ids_by_layer_group), load.first, load.first + len(load.slots))
        position = load.first * self._tokens_per_block
        job = LoadJob(load.job, accepted.request_id, blocks, tuple(load.slots), position, accepted.reservation_id)
        return job, load

    def forget(self, load: PendingLoad) -> None:
        """Forget a promise whose request has ended, or begins again, before upstream has accepted it."""
        if load.reservation is not None:
            self._promised.pop(load.reservation, None)

    def _keep(self, live: LiveRequest, load: PendingLoad, start: int, end: int) -> None:
        """Keep the blocks that hold a token from `start` to `end`."""
        size = self._tokens_per_block
        first = start // size
        behind = -(-end // size) if end > start else first
        before, after = max(first - load.first, 0), max(behind - load.first, 0)
        live.index.unpin(load.slots[:before] + load.slots[after:])
        load.slots, load.first = load.slots[before:after], first
        load.position, load.tokens = start, max(end - start, 0)


PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0  # before something that failed too often in a row is tried again


class Pause:
    """After so many failures in a row, nothing is tried until a pause is over; if it fails again then, the next pause
    is twice as long. One thread uses it, with the times of one clock."""

    def __init__(self, failures_min: int) -> None:
        self._failures_min = failures_min
        self.succeeded()

    def is_over(self, now: float) -> bool:
        return not self.is_on or now >= self._until

    def succeeded(self) -> None:
        self.failures, self._until, self._next_s = 0, 0.0, PAUSE_S_MIN  # failures in a row
        self.is_on = False

    def failed(self, now: float) -> bool:
        """True if that was one too many: what worked until now pauses."""
        was_on = self.is_on
        self.failures += 1
        self.is_on = self.failures >= self._failures_min
        if self.is_on and now >= self._until:  # else it was begun together with another one
            self._until = now + self._next_s
            self._next_s = min(2 * self._next_s, PAUSE_S_MAX)
        return self.is_on and not was_on


FAILED_IN_A_ROW_MAX = 32


class Directions:
    """Both directions, `store` and `load`. One pauses when no transfer succeeds, and both stop while the weights
    change."""

    def __init__(self, switches: Switches, weights: Weights) -> None:
        self._switches, self._weights = switches, weights
        self._pauses = {direction: Pause(FAILED_IN_A_ROW_MAX) for direction in DIRECTIONS}

    def work(self, direction: str) -> bool:
        wanted = self._switches.store if direction == "store" else self._switches.load
        pause = self._pauses[direction]  # asked for each block that is stored, so the clock is not read for nothing
        return wanted and not self._weights.are_changing and not (pause.is_on and not pause.is_over(monotonic()))

    def begin_again(self) -> None:
        for pause in self._pauses.values():
            pause.succeeded()
        counters.offload_given_up.put(0)

    def note_end(self, direction: str, ended: Ended) -> None:
        pause = self._pauses[direction]
        if not ended.error:
            if pause.is_on:
                counters.offload_given_up.add(-1)
                log.warning("%ss go on, since one has succeeded", direction)
            if pause.failures:
                pause.succeeded()
            return
        if ended.no_room or ended.bad_slots:
            return  # says nothing of the next one
        if pause.failed(monotonic()):
            counters.offload_given_up.add()
            log.error(
                "no more %ss: %d failed in a row, the last with: %s. One is tried now and then",
                direction, FAILED_IN_A_ROW_MAX, ended.error,
            )  # fmt: skip


OPAQUE_TOLD_MAX = 3
ERRORS_TOLD_MAX = 10


class Tally:
    """Numbers that show whether the host tier helps. Every so many requests they are logged.

    The scheduler's thread counts; other threads read `counters`.
    """

    def __init__(self, log_every_requests: int) -> None:
        self._log_every_requests = log_every_requests
        self._finished = 0
        self._opaque = 0
        self._errors_told = 0
        self._prompt = self._device = self._host = 0  # tokens, since the last line of the log
        self._stored = self._loaded = self._errors = 0  # blocks, transfers

    def looked_up(self, prompt: int, device: int) -> None:
        self._prompt += prompt
        self._device += device
        counters.offload_prompt_tokens.add(prompt)
        counters.offload_device_hit_tokens.add(device)

    def hit(self, tokens: int) -> None:
        """So many tokens of a prompt have come. A promise is none: a load may fail, or bring less."""
        if tokens > 0:
            self._host += tokens
            counters.offload_host_hit_tokens.add(tokens)
            counters.offload_host_hits.add()

    def opaque(self, request_id: int) -> None:
        self._opaque += 1
        counters.offload_requests_skipped.add()
        if self._opaque <= OPAQUE_TOLD_MAX:
            log.warning("request %d is left alone: its blocks depend on more than its tokens", request_id)

    def stored(self, blocks: int, ended: Ended) -> None:
        if ended.no_room:
            self.dropped(blocks)
            return
        if ended.error:
            self._failed("store", blocks, ended.error)
            return
        self._stored += blocks
        flight.note(flight.STORED, blocks)
        counters.offload_stored_blocks.add(blocks)

    def loaded(self, blocks: int, ended: Ended) -> None:
        """A load that found no room is not counted here: its request computes instead, and counts as that."""
        counters.offload_bad_blocks.add(len(ended.bad_slots))
        if ended.no_room:
            return
        if ended.error:
            self._failed("load", blocks, ended.error)
            return
        self._loaded += blocks
        flight.note(flight.LOADED, blocks)
        counters.offload_loaded_blocks.add(blocks)

    def dropped(self, blocks: int) -> None:
        counters.offload_dropped_blocks.add(blocks)

    def taken(self, taken: Taken) -> None:
        """Count what a tier has not taken, and what only passes through the host pool."""
        if taken.is_staged:
            counters.offload_remote_staged_blocks.add(len(taken.slots))
            counters.offload_remote_dropped_blocks.add(taken.left)
        elif taken.is_declined:
            counters.offload_declined_blocks.add(taken.left)
        else:
            self.dropped(taken.left)

    def show(self, index: TierIndex) -> None:
        stats = index.stats()
        counters.offload_pool_blocks.put(stats.slots)
        counters.offload_pool_free_blocks.put(stats.free)
        counters.offload_pool_busy_blocks.put(stats.owned)
        counters.offload_evicted_blocks.put(stats.evicted)

    def finished(self, index: TierIndex | None) -> None:
        self._finished += 1
        if self._log_every_requests and self._finished % self._log_every_requests == 0:
            self._tell(index)

    def _failed(self, what: str, blocks: int, error: str) -> None:
        self._errors += 1
        flight.note(flight.TRANSFER_FAILED, blocks, text=what)
        self._errors_told += 1
        counters.offload_errors.add()
        if self._errors_told <= ERRORS_TOLD_MAX:
            last = "; further ones are counted" if self._errors_told == ERRORS_TOLD_MAX else ""
            log.error("a %s of %d blocks failed: %s%s", what, blocks, error, last)

    def _tell(self, index: TierIndex | None) -> None:
        shares = [100 * part / max(self._prompt, 1) for part in (self._device, self._host)]
        free = f"{index.stats().free} of {index.slots} host blocks free" if index is not None else "no host tier yet"
        log.info(
            "%d requests: of their prompts %.1f%% were on the device, %.1f%% came from the host tier; "
            "%d blocks stored, %d loaded, %d transfers failed; %s",
            self._log_every_requests, *shares, self._stored, self._loaded, self._errors, free,
        )  # fmt: skip
        self._prompt = self._device = self._host = self._stored = self._loaded = self._errors = 0


class Shared(NamedTuple):
    """The parts of the scheduler side that a store behind the host tier uses as well."""

    settings: OffloadSettings
    tokens_per_block: int
    link: Link
    directions: Directions
    loads: Loads
    prefill: Prefill


class Behind(StoreBehind[LiveRequest], Protocol):
    """The scheduler side of a store behind the host tier. Its own jobs end with `end`."""

    def tick(self) -> None:
        """Called in every iteration."""
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
    def end(self, policy: TierPolicy[LiveRequest], record: Record, ended: Ended) -> None: ...
    def drop(self, request_id: int) -> None:
        """The request's blocks are somebody else's."""
        ...

    def forget_weights(self) -> None: ...

    @property
    def hits(self) -> HitClasses: ...


REPORTED_EVERY = 100  # requests


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
        self._policy: TierPolicy[LiveRequest] | None = None
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
        self.worth = HostWorth(Prefill())
        self._hits, self._finished = HitClasses("host"), 0
        self.behind: Behind | None = None
        if make_behind is not None:
            shared = Shared(settings, tokens_per_block, link, self._directions, self._loads, self.worth.prefill)
            self.behind = make_behind(shared)
            link.hold_back = self.hold_back
        self._decides = settings.min_reuse_blocks == AUTO
        self._estimates = self._decides or self.behind is not None

    @property
    def policy(self) -> TierPolicy[LiveRequest] | None:
        """The policy, made when the worker side knows how many blocks fit."""
        if self._policy is None and self._link.slots is not None:
            self._policy = policy_of(
                self._link.slots, self._tokens_per_block, self._settings.admission,
                blocks_min=1 if self._settings.min_reuse_blocks == AUTO else self._settings.min_reuse_blocks,
                is_worth=self._is_worth if self._estimates else always, store=self.behind,
                store_blocks_min=self._settings.remote.min_reuse_blocks,
            )  # fmt: skip
        return self._policy

    @property
    def index(self) -> TierIndex | None:
        policy = self.policy
        return None if policy is None else policy.index

    def _is_worth(self, tokens: int) -> bool:
        estimate = self.worth.estimate(monotonic(), tokens)
        is_loaded = estimate.is_worth or not self._decides
        self._hits.note(tokens, estimate, is_loaded=is_loaded)
        return is_loaded

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
            self.behind.tick()
        self._take_ended()
        if self._switches.has_file and self._switches.read() and self._policy is not None:
            self._policy.index.drop()
            self._directions.begin_again()
        if scheduler_output is not None:
            if self._estimates:
                self.worth.prefill.note_step(monotonic(), prompt_tokens_of(scheduler_output))
            self._take_report(scheduler_output)
        self._show()
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
        self._finished += 1
        if self._estimates and self._finished % REPORTED_EVERY == 0:
            self._link.report_hits([*self._hits.report(), *(self.behind.hits.report() if self.behind else ())])
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
            self.behind.tick()
        self._take_ended()
        self._loads.plan_forgotten(waiting, self._live)
        closed = tuple(request_id for request_id, live in self._finishing.items() if self._plan_store(live))
        for request_id in closed:
            self._finishing.pop(request_id).close()
        self._show()
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
            if not self._finds_slots(live, live.covered, end):
                return True
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

    def _finds_slots(self, live: LiveRequest, first: int, end: int) -> bool:
        """Note where these blocks lie now, if that can be said. V2 tells no connector when it puts the block of a
        request that has computed the same tokens in the place of this one's, and gives the other away."""
        by_group = self._link.slots_now(live.request_id, first, end)
        if by_group is None:
            return True
        if len(by_group) != len(live.blocks) or any(slot < 0 for slots in by_group for slot in slots):
            return False
        for known, slots in zip(live.blocks, by_group, strict=True):
            known[first:end] = slots
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
        if all_ended:
            self._show()

    def _show(self) -> None:
        """Nothing may follow for long, as in an engine that becomes idle."""
        if self._policy is not None:
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
            now = monotonic()
            self.worth.note_load(now, come, now - load.since)
        if job.slots:  # one that brings nothing, for a request that is over, tells nothing of copies
            self._directions.note_end("load", ended)
        live = self._live.get(job.request_id)
        if live is not None and live.load is load:
            live.load = None
