"""The scheduler side of a store behind the host tier: what goes there, and what is worth bringing back.

                 look    store      before a request is scheduled (`Lookups`)
    host pool <- fetch - store      a request waits for it as for any load, and then loads from the host pool
    host pool -- put --> store      behind every store to the host pool; nobody waits for it

What the host tier does not take goes to the store as well, through a part of the pool that is kept for that.

A fetch fills slots that are claimed for it, so nobody reads or takes them before it is over on all ranks. The blocks in
front of the first one that does not come are used. A request that has waited long enough computes, while its fetch goes
on.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

from trtllm_kvfix.blocks.identity import Identity, identity_of, tokens_of
from trtllm_kvfix.log import offload_log as log
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import TierIndex
from trtllm_kvfix.offload.ledger import (
    Ended,
    FetchJob,
    FreeJob,
    Link,
    LoadJob,
    PutJob,
    Record,
    RemoteStore,
)
from trtllm_kvfix.offload.patches import guarded
from trtllm_kvfix.offload.policy import PendingFetch, PendingLoad, Staging, TierPolicy
from trtllm_kvfix.offload.remote.keys import Era, Given, KeyChain, array_of, start_of
from trtllm_kvfix.offload.remote.messages import OBJECTS_MAX, Look
from trtllm_kvfix.offload.scheduler import LiveRequest, OffloadScheduler, Pause, Shared, opened
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.worth import Estimate, HitClasses, Worth
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.ranks import Ranks

# Puts to the store: blocks that have arrived in the host pool, whether the host tier has taken them or not.

PUT_SHARE = 4  # of the host tier, one part in so many may wait to be put; answers take at most half of that part


@dataclass
class Stored:
    """Plan for the end of a store: its blocks, from `first` on, go to the remote tier as well."""

    live: LiveRequest
    first: int


class Puts:
    """The executor's thread alone uses it. A sequence is held from the plan of a store until its put is over."""

    def __init__(self, link: Link) -> None:
        self._link, self._ledger = link, link.ledger
        self._staging = Staging(1)  # until the pool is known
        self._pinned = 0  # slots of the host tier
        self._coming: set[bytes] = set()  # keys of what is being put

    def share(self, slots: int) -> Staging:
        self._staging = Staging(slots)
        return self._staging

    def is_staged(self, slots: tuple[int, ...]) -> bool:
        """Whether the slots of a store or put are staging slots: the index knows nothing of them."""
        return slots[0] in self._staging

    def takes(self, live: LiveRequest) -> bool:
        return live.chain is not None and self._is_up()

    def plan_of(self, live: LiveRequest, first: int) -> Stored | None:
        if live.chain is None or self._link.store is None:
            return None
        live.hold()
        return Stored(live, first)

    def begin(self, stored: Stored, slots: tuple[int, ...], *, well: bool) -> None:
        """Its store is over. Only what arrived is put."""
        live, first = stored.live, stored.first
        if well and live.chain is not None:  # none: the weights have changed since
            of_prompt = min(live.prompt_blocks_from(first), len(slots))
            self._begin(live, first, slots[:of_prompt], is_prompt=True)
            self._begin(live, first + of_prompt, slots[of_prompt:], is_prompt=False)
        elif self.is_staged(slots):
            self._staging.give_back(slots)
        live.let_go()

    def again(self, live: LiveRequest, first: int, end: int) -> None:
        """Put blocks that are in the host tier and no longer in the store. Requests wait for none of these."""
        if live.chain is None or first >= end:
            return
        missing = [key not in self._coming for key in live.chain.keys(first, end)]
        if True not in missing:
            return
        begin = missing.index(True)
        count = [*missing[begin:], False].index(False)
        slots = self._pin(live, first + begin, count, is_prompt=True)
        self._plan(live, first + begin, slots, is_prompt=True)

    def _begin(self, live: LiveRequest, first: int, slots: tuple[int, ...], *, is_prompt: bool) -> None:
        if slots and not self.is_staged(slots):
            slots = self._pin(live, first, len(slots), is_prompt=is_prompt)
        self._plan(live, first, slots, is_prompt=is_prompt)

    def _plan(self, live: LiveRequest, first: int, slots: tuple[int, ...], *, is_prompt: bool) -> None:
        if not slots or live.chain is None:
            return
        live.hold()
        keys = live.chain.keys(first, first + len(slots))
        self._coming.update(keys)
        self._ledger.plan(PutJob(self._ledger.next_number(), live.request_id, keys, slots, is_prompt), live)

    def end(self, live: LiveRequest, put: PutJob, ended: Ended) -> None:
        if self.is_staged(put.slots):
            self._staging.give_back(put.slots)
        else:
            live.index.unpin(put.slots)
            self._pinned -= len(put.slots)
        self._coming.difference_update(put.keys)
        live.let_go()
        if ended.no_room or ended.error:
            counters.offload_remote_dropped_blocks.add(len(put.slots))
        if ended.error and not ended.no_room:
            counters.offload_remote_errors.add()
        if not ended.error:
            counters.offload_remote_put_blocks.add(len(put.slots))

    def _pin(self, live: LiveRequest, first: int, blocks: int, *, is_prompt: bool) -> tuple[int, ...]:
        """Pins blocks of the host tier: they stay where they are until the put is over, and no more than a part of it
        does."""
        share = PUT_SHARE if is_prompt else 2 * PUT_SHARE
        room = max(live.index.slots // share, 1) - self._pinned
        count = max(min(blocks, room), 0) if self._is_up() else 0
        counters.offload_remote_dropped_blocks.add(blocks - count)
        slots = live.index.pin(live.sequence, first, first + count)
        self._pinned += len(slots)
        return tuple(slots)

    def _is_up(self) -> bool:
        return self._link.store is not None and self._link.store.is_up


# Lookups: what the store has of a prompt, asked before upstream's scheduler sees the request.
#
#     arrives --> asked --> held back until the answer, or for as long as it is patient --> scheduled, then fetched
#
# Upstream asks a connector once, when a request has its blocks, and that answer is final: none can be "ask me later".
# So the store is asked before, and the executor's thread goes on meanwhile.

FUSE = "offload-remote"
OBJECT_S = 20e-6  # for each object (a block of one rank) that the store is asked about, a prompt waits so much longer


@dataclass
class Lookup:
    """A question about a prompt, and its answer."""

    objects: int
    until: float  # the request waits so long, by the clock of `monotonic`; 0: it does not wait
    given: Given = field(default_factory=Given)
    found: int | None = None  # leading blocks that all ranks have in the store
    is_over: bool = False  # there is an answer, or there will be none
    is_used: bool = False

    def is_waited_for(self, now: float) -> bool:
        return not self.is_over and now < self.until


class Lookups:
    """Those of active requests. The executor's thread of rank 0 uses it."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._numbers = count(1)
        self._of: dict[int, Lookup] = {}  # by request
        self._asked: dict[int, Lookup] = {}  # by number: those without an answer

    def __len__(self) -> int:
        return len(self._of)

    def of(self, request_id: int) -> Lookup | None:
        return self._of.get(request_id)

    def keep(self, request_ids: Collection[int]) -> None:
        """Forget those of all other requests."""
        for request_id in self._of.keys() - request_ids:
            del self._of[request_id]

    def forget_all(self) -> None:
        self._of.clear()

    def may_ask(self, store: RemoteStore) -> bool:
        """Whether the store answers now. If a call of it takes longer than any should, nobody waits for the next."""
        return store.is_up and store.lookups_wait_s() < self._wait_s + OBJECT_S * OBJECTS_MAX

    def ask(self, store: RemoteStore, request_id: int, look: Look, patience_s: float) -> None:
        """The answers come in the order of the questions, so each waits for those before it, too."""
        lookup = Lookup(len(look.tokens) // look.tokens_per_block * store.ranks, 0.0)
        if patience_s:
            objects = lookup.objects + sum(each.objects for each in self._asked.values())
            lookup.until = monotonic() + min(self._wait_s + OBJECT_S * objects, patience_s)
        numbered = look._replace(number=next(self._numbers))
        if store.look(numbered):
            counters.offload_remote_lookups.add()
            self._of[request_id] = self._asked[numbered.number] = lookup

    def take_answers(self, store: RemoteStore) -> None:
        for answer in store.take_found():
            lookup = self._asked.pop(answer.number, None)
            if lookup is None:  # another scheduler side of this process has asked
                continue
            lookup.is_over = True
            if not answer.error:
                lookup.given.keys, lookup.found = answer.keys, answer.blocks


class HeldBack:
    """Keeps requests from upstream's scheduler while they wait for the store's answer. The others overtake them.

    Rank 0 decides, and tells the others in each iteration in which a request is new or waits. The executor's thread of
    each rank uses it.
    """

    def __init__(self, link: Link, ranks: Ranks) -> None:
        self._link, self._ranks = link, ranks
        self._shown: set[int] = set()  # active requests that wait no more

    def shown(self, active: Sequence[Any]) -> Sequence[Any]:
        """Return the active requests that the scheduler may choose from. They are the same on every rank."""
        try:
            self._shown.intersection_update([request.py_request_id for request in active])
            undecided = [one for one in active if one.is_context_init_state and one.py_request_id not in self._shown]
        except Exception as error:  # on all ranks alike, as upstream's requests are
            fuse.of(FUSE).fault(error)
            return active
        if not undecided:
            return active
        waiting = set(self._ranks.gather(self._link.hold_back(undecided, active))[0])
        self._shown.update(one.py_request_id for one in undecided if one.py_request_id not in waiting)
        return [request for request in active if request.py_request_id not in waiting] if waiting else active


FAILURES_MIN = 3  # fetches in a row, before it is left alone
ASKED_TOKENS_MAX = 16384  # of prompts, in one iteration: others are asked about in the next one

AVOIDED_S = 60.0  # a block whose read has failed is asked for again: its node may be back, or the block elsewhere
NOBODY = -1  # in the place of a request

PATIENCE = 2.0  # a request waits that many times as long as it would compute
PATIENCE_S_MIN = 0.5
SAID_EVERY = 100  # estimates


@dataclass
class Fetching:
    """Plan of the scheduler side for a fetch."""

    live: LiveRequest
    load: PendingLoad
    fetch: PendingFetch
    since: float
    until: float
    is_told: bool = False  # the request knows of its load
    is_dropped: bool = False  # the request's blocks are somebody else's


class RemoteTier:
    """The store behind the host tier, for one scheduler side. Called by the executor's thread alone."""

    def __init__(self, shared: Shared) -> None:
        self._settings, self._tokens_per_block, self._link, self._directions, self._loads, prefill = shared
        self._remote, self._ledger = self._settings.remote, self._link.ledger
        self._patience_s_max = min(self._remote.timeout_s, self._settings.transfer_timeout_s / 2)
        self.worth, self.hits = Worth(prefill), HitClasses("store")
        self.lookups = Lookups(self._remote.lookup_wait_ms / 1000)
        self.puts = Puts(self._link)
        self.share, self.takes, self.plan_of = self.puts.share, self.puts.takes, self.puts.plan_of
        self._fetch_pause = Pause(FAILURES_MIN)  # after fetches that failed
        self._avoided: dict[bytes, float] = {}  # keys of blocks whose reads have failed -> until when
        self._estimates = 0
        self._era = Era()

    def tick(self) -> None:
        self._give_up()

    def forget_weights(self) -> None:
        self._era.begin_next()
        self.lookups.forget_all()

    def hold_back(self, index: TierIndex | None, waiting: Sequence[Any], active: Sequence[Any]) -> list[int]:
        """Ask the store about requests that wait to start, and return those that wait for its answer."""
        held_back: list[int] = []
        with guarded(FUSE) as tried:
            self.lookups.keep({request.py_request_id for request in active})
            if self._link.store is not None:
                held_back = self._without_answer(self._link.store, index, waiting)
        return [] if tried.failed else held_back

    def _without_answer(self, store: RemoteStore, index: TierIndex | None, waiting: Sequence[Any]) -> list[int]:
        self.lookups.take_answers(store)
        held_back, tokens, now = [], 0, monotonic()
        for request in waiting:
            lookup = self.lookups.of(request.py_request_id)
            if lookup is None and self._may_fetch(store, now) and self.lookups.may_ask(store):
                tokens += request.prompt_len
                if ASKED_TOKENS_MAX < tokens != request.prompt_len:  # but one of any length
                    held_back.append(request.py_request_id)
                    continue
                self._ask(store, index, request)
                lookup = self.lookups.of(request.py_request_id)
            if lookup is not None and lookup.is_waited_for(now):
                held_back.append(request.py_request_id)
        return held_back

    def _may_fetch(self, store: RemoteStore, now: float) -> bool:
        may = store.is_up and self._directions.work("load") and not fuse.of(FUSE).blown
        return may and self._fetch_pause.is_over(now)

    def _ask(self, store: RemoteStore, index: TierIndex | None, request: Any) -> None:
        identity, size = identity_of(request), self._tokens_per_block
        blocks = (request.prompt_len - 1) // size
        if index is None or identity is None or not self._is_shared(identity) or blocks < self._remote.min_reuse_blocks:
            return
        tokens = array_of(tokens_of(request))[: blocks * size]
        sequence = opened(index, identity)
        index.extend(sequence, tokens)
        held = index.held(sequence)
        index.close(sequence)
        # Nothing is fetched for reservations, and nothing for what the host tier has: then nobody waits.
        waits = blocks - held >= self._remote.min_reuse_blocks and not self._loads.are_reserved
        patience_s = self._patience_s(len(tokens)) if waits else 0.0
        start = start_of(self._era.root(store.root), identity)
        look = Look(0, start, identity.extra_keys, size, tokens, held)
        self.lookups.ask(store, request.request_id, look, patience_s)

    def _is_shared(self, identity: Identity) -> bool:
        return identity.lora_id is None or self._remote.shared_adapters

    def _chain(self, live: LiveRequest, lookup: Lookup | None) -> KeyChain | None:
        """What names its blocks, if they go to the store. A lookup has made the names, or is about to."""
        store, identity = self._link.store, live.identity
        if store is None or not store.is_up or not self._is_shared(identity):
            return None
        start, given = start_of(self._era.root(store.root), identity), lookup.given if lookup else None
        return KeyChain(start, identity.extra_keys, self._tokens_per_block, given)

    def meet(self, live: LiveRequest) -> None:
        self.drop(live.request_id)  # a request that begins again waits for nothing of before
        try:
            lookup = self._named(live)
        except Exception as error:  # no success is told to the fuse, since most requests ask nothing here
            fuse.of(FUSE).fault(error)
            return
        if live.chain is None or lookup is None or lookup.is_used:
            return
        lookup.is_used = True
        with guarded(FUSE):
            if self._directions.work("load"):  # what is not looked for is not put again either
                live.index_blocks((live.length - 1) // self._tokens_per_block)
            self._note_answer(live, lookup)

    def _named(self, live: LiveRequest) -> Lookup | None:
        """Have the request name its blocks. Returns what was looked up of them."""
        if self._link.store is not None:
            self.lookups.take_answers(self._link.store)
        lookup = self.lookups.of(live.request_id)
        live.chain = self._chain(live, lookup)
        return lookup

    def reach(self, live: LiveRequest, held: int, _limit: int) -> int:
        store, lookup = self._link.store, self.lookups.of(live.request_id)
        if store is None or lookup is None or live.chain is None:
            return 0
        # Upstream may take a part of a reservation, or come back on it, in the middle of a fetch.
        if self._loads.are_reserved or not self._may_fetch(store, monotonic()):
            return 0
        return self._reach_before_avoided(live, held, lookup.found or 0)

    def names(self, live: LiveRequest, first: int, end: int) -> tuple[bytes, ...]:
        return live.chain.keys(first, end) if live.chain is not None else ()

    def is_worth(self, blocks: int, tokens: int) -> bool:
        store = self._link.store
        with guarded(FUSE):
            if store is not None and self._estimate(store.block_bytes * blocks, tokens).is_worth:
                return True
        return False

    def _note_answer(self, live: LiveRequest, lookup: Lookup) -> None:
        if lookup.found is not None:
            if self._directions.work("store"):
                self.puts.again(live, lookup.found, live.index.held(live.sequence))
        elif lookup.until:
            counters.offload_remote_unanswered.add()

    def _estimate(self, nbytes: int, tokens: int) -> Estimate:
        block_bytes = self._link.store.block_bytes if self._link.store else 0
        waiting = self._ledger.slots_of(FetchJob) * block_bytes
        estimate = self.worth.estimate(monotonic(), nbytes, tokens, waiting)
        counters.offload_remote_bytes_per_s.put(self.worth.bytes_per_s or 0)
        counters.offload_prefill_tokens_per_s.put(self.worth.prefill.tokens_per_s or 0)
        self.hits.note(tokens, estimate, is_loaded=estimate.is_worth)
        if not estimate.is_worth:
            counters.offload_remote_not_worth.add()
        if self._estimates % SAID_EVERY == 0:
            self._say(nbytes, tokens, estimate)
        self._estimates += 1
        return estimate

    def _say(self, nbytes: int, tokens: int, estimate: Estimate) -> None:
        log.info(
            "remote tier: %d tokens are %d bytes, %.3f s to load at %.0f MB/s, and %.3f s to compute at %.0f tokens/s: "
            "%s (one estimate in %d is told)",
            tokens, nbytes, estimate.load_s, (self.worth.bytes_per_s or 0) / 1e6, estimate.compute_s,
            self.worth.prefill.tokens_per_s or 0, "loaded" if estimate.is_worth else "computed", SAID_EVERY,
        )  # fmt: skip

    def brings(self, live: LiveRequest, load: PendingLoad) -> bool:
        fetch = load.fetch
        if fetch is None:
            return False
        load.fetch, load.job = None, self._ledger.next_number()  # on its way: nobody else gives its slots back
        now = monotonic()
        live.hold()
        job = FetchJob(self._ledger.next_number(), live.request_id, fetch.keys, tuple(fetch.slots))
        self._ledger.plan(job, Fetching(live, load, fetch, now, now + self._patience_s(load.tokens)))
        return True

    def _patience_s(self, tokens: int) -> float:
        """How long a request waits for tokens that it could compute."""
        compute_s = self.worth.prefill.seconds(tokens) or self._patience_s_max
        return min(max(PATIENCE * compute_s, PATIENCE_S_MIN), self._patience_s_max)

    def _fetching(self) -> list[Fetching]:
        """Fetches that not all ranks have ended."""
        return [record.plan for record in self._ledger.of(FetchJob)]

    def _give_up(self) -> None:
        now = monotonic()
        for fetching in [one for one in self._fetching() if not one.is_told and one.until < now]:
            counters.offload_remote_late.add()
            self._give(fetching, has_come=False)

    def drop(self, request_id: int) -> None:
        for fetching in self._fetching():
            fetching.is_dropped |= fetching.live.request_id == request_id

    def _give(self, fetching: Fetching, *, has_come: bool) -> None:
        """Have the request load what is here now, and compute the rest."""
        live, load, fetch = fetching.live, fetching.load, fetching.fetch
        fetching.is_told = True
        if fetching.is_dropped:
            live.index.unpin(load.slots)
        elif live.is_over:  # upstream waits for its load all the same
            job = LoadJob(self._ledger.next_number(), live.request_id, (), (), 0)
            self._loads.plan(job, load)
        else:
            # Directly behind what is pinned: meanwhile others may have stored these blocks, and blocks before them.
            first, end = load.first + len(load.slots), fetch.first + len(fetch.slots)
            come = live.index.pin(live.sequence, first, end) if has_come else []
            load.slots += come
            load.is_short = len(come) < end - first
            self._loads.place(live, load)

    def end(self, policy: TierPolicy[LiveRequest], record: Record, ended: Ended) -> None:
        if isinstance(record.job, PutJob):
            self.puts.end(record.plan, record.job, ended)
        elif isinstance(record.job, FreeJob):
            policy.freed(record.job.slots)
        else:
            self._end_fetch(policy, record.plan, ended)

    def stored(self, plan: Stored, slots: tuple[int, ...], *, well: bool) -> None:
        self.puts.begin(plan, slots, well=well)

    def _end_fetch(self, policy: TierPolicy[LiveRequest], fetching: Fetching, ended: Ended) -> None:
        live, slots = fetching.live, fetching.fetch.slots
        counters.offload_remote_bad_blocks.add(len(ended.bad_slots))
        come = 0 if ended.error else leading_blocks(slots, ended.lost_slots)
        if ended.error:
            self._fetch_pause.failed(monotonic())
        if come < len(slots):
            counters.offload_remote_errors.add()
            why = ended.error or f"{len(ended.lost_slots)} are gone from it, or bad, as {len(ended.bad_slots)} are"
            log.warning("%d of %d blocks did not come from the remote tier: %s", len(slots) - come, len(slots), why)
        policy.fetched(slots, come, ended.unsure_slots)
        if ended.unsure_slots:
            self._leave_alone(fetching.fetch, ended.unsure_slots)
        if come:
            self._fetch_pause.succeeded()
            now = monotonic()
            nbytes = come * (self._link.store.block_bytes if self._link.store else 0)
            self.worth.note_load(now, nbytes, now - fetching.since)
            counters.offload_remote_fetched_blocks.add(come)
            if not (fetching.is_told or fetching.is_dropped or live.is_over):
                counters.offload_remote_hit_tokens.add(come * self._tokens_per_block)
        if not fetching.is_told:
            self._give(fetching, has_come=come > 0)
        live.let_go()

    def _leave_alone(self, fetch: PendingFetch, unsure: tuple[int, ...]) -> None:
        """The reads of these blocks have failed, as on a node that is dead. Nobody asks for the blocks for a while, and
        nobody uses the slots before all ranks know that they will not be written."""
        until = monotonic() + AVOIDED_S
        for key in (key for key, slot in zip(fetch.keys, fetch.slots, strict=True) if slot in unsure):
            self._avoided.pop(key, None)  # the order is that of their times
            self._avoided[key] = until
        self._ledger.plan(FreeJob(self._ledger.next_number(), NOBODY, unsure), None)

    def _reach_before_avoided(self, live: LiveRequest, held: int, found: int) -> int:
        """Up to which block it may be fetched: none is asked for that has just failed."""
        now = monotonic()
        while self._avoided and next(iter(self._avoided.values())) < now:
            del self._avoided[next(iter(self._avoided))]
        if not self._avoided or found <= held:
            return found
        keys = self.names(live, held, found)
        return held + next((at for at, key in enumerate(keys) if key in self._avoided), len(keys))


def leading_blocks(slots: Sequence[int], lost: Collection[int]) -> int:
    """Count the blocks in front of the first one that is lost."""
    gone = {*lost}
    return next((at for at, slot in enumerate(slots) if slot in gone), len(slots))


def remote_scheduler(
    settings: OffloadSettings, tokens_per_block: int, link: Link, switches: Switches
) -> OffloadScheduler:
    """The scheduler side with a store behind its host tier."""
    return OffloadScheduler(settings, tokens_per_block, link, switches, RemoteTier)
