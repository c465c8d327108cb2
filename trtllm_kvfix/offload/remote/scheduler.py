"""The scheduler side with a remote tier behind the host tier: what goes there, and what is worth bringing back.

    host pool <- fetch - store      a request waits for it as for any load, and then loads from the host pool
    host pool -- put --> store      behind every store to the host pool; nobody waits for it

A fetch fills slots that are claimed for it, so nobody reads or takes them before it is over on all ranks. It brings all
of its blocks or none. A request that has waited long enough computes, while its fetch goes on.
"""

import logging
from dataclasses import dataclass
from time import monotonic
from typing import Any

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.faults import guarded
from trtllm_kvfix.offload.plan import Ended, FetchJob, Late, LoadJob, PutJob, Step
from trtllm_kvfix.offload.remote.keys import KeyChain
from trtllm_kvfix.offload.remote.pause import Pause
from trtllm_kvfix.offload.remote.worth import Estimate, Worth
from trtllm_kvfix.offload.requests import LiveRequest, PendingFetch, PendingLoad
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.overlay import fuse

_log = logging.getLogger("trtllm_kvfix.offload")
PART = "offload-remote"
PUT_SHARE = 4  # of the host pool, one part in so many may wait to be put
PATIENCE = 2.0  # a request waits that many times as long as it would compute
PATIENCE_S_MIN = 0.5
SAID_EVERY = 100  # estimates


@dataclass
class Fetching:
    live: LiveRequest
    load: PendingLoad
    fetch: PendingFetch
    since: float
    until: float
    is_told: bool = False  # the request has been told of its load
    is_dropped: bool = False  # the request's blocks are somebody else's


@dataclass
class Stored:
    """Blocks on their way to the host pool, and to the store behind it."""

    live: LiveRequest
    first: int
    end: int


class RemoteScheduler(OffloadScheduler):
    """Called by the executor's thread alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._remote = self._settings.remote
        self._patience_s_max = min(self._remote.timeout_s, self._settings.transfer_timeout_s / 2)
        self.worth = Worth()
        self._pause = Pause()
        self._fetching: dict[int, Fetching] = {}  # jobs that not all ranks have ended
        self._storing: dict[int, Stored] = {}  # stores whose blocks are to be put
        self._putting: dict[int, tuple[LiveRequest, list[int]]] = {}
        self._estimates = 0

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        if scheduler_output is not None:
            self.worth.note_step(monotonic(), prompt_tokens_of(scheduler_output))
        self._give_up()
        return super().build_connector_meta(scheduler_output)

    def plan_late(self) -> Late:
        self._give_up()
        return super().plan_late()

    def request_over(self, request_id: int, blocks_stay: bool) -> None:
        super().request_over(request_id, blocks_stay)
        if not blocks_stay:
            self._drop(request_id)

    def _find_load(self, live: LiveRequest, num_computed_tokens: int) -> PendingLoad | None:
        self._drop(live.request_id)  # a request that begins again waits for nothing of before
        store, adapter = self._link.store, live.identity.lora_id
        if store is not None and (adapter is None or self._remote.shared_adapters):
            live.chain = KeyChain(store.root, live.identity, self._tokens_per_block)
        found = super()._find_load(live, num_computed_tokens)
        if live.chain is None or fuse.of(PART).blown or not self._directions.work("load"):
            return found
        if self._reserves:  # upstream may take a part of a promise, or come back on it, in the middle of a fetch
            return found
        end = 0
        with guarded(PART):
            end = self._end_worth(live, live.chain, num_computed_tokens)
        return self._with_fetch(live, num_computed_tokens, found, end) if end else found

    def _end_worth(self, live: LiveRequest, chain: KeyChain, position: int) -> int:
        """Up to which block fetching is worth it; 0 for nothing."""
        store, now = self._link.store, monotonic()
        held, limit = live.index.held(live.sequence), (live.length - 1) // self._tokens_per_block
        here = max(held, position // self._tokens_per_block)
        if store is None or limit - here < self._remote.min_reuse_blocks:
            return 0
        if not store.is_up or not self._pause.is_over(now):
            return 0
        counters.offload_remote_lookups.add()
        found = store.look(tuple(chain.keys[held:limit]), self._remote.lookup_wait_ms / 1000)
        if found is None:
            self._pause.failed(now)
            counters.offload_remote_unanswered.add()
            return 0
        self._pause.succeeded()
        end = held + next((at for at, has in enumerate(found) if not has), len(found))
        if end - here < self._remote.min_reuse_blocks:
            return 0
        tokens = end * self._tokens_per_block - max(position, held * self._tokens_per_block)
        estimate = self._estimate((end - held) * store.block_bytes, tokens)
        return end if estimate.is_worth else 0

    def _estimate(self, nbytes: int, tokens: int) -> Estimate:
        block_bytes = self._link.store.block_bytes if self._link.store else 0
        waiting = sum(len(each.fetch.slots) * block_bytes for each in self._fetching.values())
        estimate = self.worth.estimate(monotonic(), nbytes, tokens, waiting)
        counters.offload_remote_bytes_per_s.put(self.worth.bytes_per_s or 0)
        counters.offload_prefill_tokens_per_s.put(self.worth.tokens_per_s or 0)
        if not estimate.is_worth:
            counters.offload_remote_not_worth.add()
        if self._estimates % SAID_EVERY == 0:
            self._say(nbytes, tokens, estimate)
        self._estimates += 1
        return estimate

    def _say(self, nbytes: int, tokens: int, estimate: Estimate) -> None:
        _log.info(
            "remote tier: %d tokens are %d bytes, %.3f s to load at %.0f MB/s, and %.3f s to compute at %.0f tokens/s: "
            "%s (one estimate in %d is told)",
            tokens, nbytes, estimate.load_s, (self.worth.bytes_per_s or 0) / 1e6, estimate.compute_s,
            self.worth.tokens_per_s or 0, "loaded" if estimate.is_worth else "computed", SAID_EVERY,
        )  # fmt: skip

    def _with_fetch(self, live: LiveRequest, position: int, found: PendingLoad | None, end: int) -> PendingLoad | None:
        """Claim slots. Where there are too few, or others fill them now, the request has what the host pool holds."""
        index, first = live.index, position // self._tokens_per_block
        claim = index.claim(live.sequence, end, reused=True)  # it comes back, so it is worth its place
        if claim is None or not claim.slots:
            return found
        end = claim.first + len(claim.slots)
        gained = end * self._tokens_per_block - position
        if end - first < self._remote.min_reuse_blocks or gained <= 0 or live.chain is None:
            index.abandon(claim.slots)
            return found
        load = found or PendingLoad(index.pin(live.sequence, first, claim.first), first, position, 0)
        load.tokens = gained
        load.fetch = PendingFetch(claim.slots, claim.first, tuple(live.chain.keys[claim.first : end]))
        return load

    def _tell_load(self, live: LiveRequest, load: PendingLoad) -> None:
        fetch = load.fetch
        if fetch is None:
            super()._tell_load(live, load)
            return
        load.fetch, load.job = None, next(self._numbers)  # on its way: nobody else gives its slots back
        job, now = next(self._numbers), monotonic()
        compute_s = load.tokens / self.worth.tokens_per_s if self.worth.tokens_per_s else self._patience_s_max
        patience_s = min(max(PATIENCE * compute_s, PATIENCE_S_MIN), self._patience_s_max)
        live.hold()
        self._fetching[job] = Fetching(live, load, fetch, now, now + patience_s)
        self._next.fetches.append(FetchJob(job, live.request_id, fetch.keys, tuple(fetch.slots)))

    def _give_up(self) -> None:
        now = monotonic()
        for fetching in [one for one in self._fetching.values() if not one.is_told and one.until < now]:
            counters.offload_remote_late.add()
            self._give(fetching, has_come=False)

    def _drop(self, request_id: int) -> None:
        for fetching in self._fetching.values():
            fetching.is_dropped |= fetching.live.request_id == request_id

    def _give(self, fetching: Fetching, *, has_come: bool) -> None:
        """Have the request load what is here now, and compute the rest."""
        live, load, fetch = fetching.live, fetching.load, fetching.fetch
        fetching.is_told = True
        if fetching.is_dropped:
            live.index.unpin(load.slots)
        elif live.is_over:  # upstream waits for its load all the same
            job = LoadJob(next(self._numbers), live.request_id, (), (), 0)
            self._loads.plan(job, load)
        else:
            first, end = max(load.first, fetch.first), fetch.first + len(fetch.slots)
            come = live.index.pin(live.sequence, first, end) if has_come else []
            load.slots += come
            load.is_short = len(come) < end - first
            super()._tell_load(live, load)

    def _end(self, ended: Ended) -> None:
        if ended.job in self._fetching:
            self._end_fetch(ended)
        elif ended.job in self._putting:
            self._end_put(ended)
        else:
            super()._end(ended)

    def _end_fetch(self, ended: Ended) -> None:
        fetching = self._fetching.pop(ended.job)
        live, slots = fetching.live, fetching.fetch.slots
        counters.offload_remote_bad_blocks.add(len(ended.bad_slots))
        if ended.error:
            live.index.abandon(slots)
            counters.offload_remote_errors.add()
            _log.warning("%d blocks did not come from the remote tier: %s", len(slots), ended.error)
        else:
            live.index.commit(slots)
            now = monotonic()
            nbytes = len(slots) * (self._link.store.block_bytes if self._link.store else 0)
            self.worth.note_load(now, nbytes, now - fetching.since)
            counters.offload_remote_fetched_blocks.add(len(slots))
            if not fetching.is_told:
                counters.offload_remote_hit_tokens.add(len(slots) * self._tokens_per_block)
        if not fetching.is_told:
            self._give(fetching, has_come=not ended.error)
        live.let_go()

    def _store(self, live: LiveRequest, first: int, end: int, slots: tuple[int, ...]) -> None:
        super()._store(live, first, end, slots)
        if live.chain is not None and self._link.store is not None:
            live.hold()
            self._storing[self._next.stores[-1].job] = Stored(live, first, end)

    def _end_store(self, ended: Ended) -> None:
        super()._end_store(ended)
        stored = self._storing.pop(ended.job, None)
        if stored is None:
            return
        if not ended.error and self._put(stored):
            return
        stored.live.let_go()

    def _put(self, stored: Stored) -> bool:
        """Whether it is on its way. The host pool's blocks stay where they are until it is over."""
        live, store = stored.live, self._link.store
        wait = sum(len(slots) for _, slots in self._putting.values())
        room = max(live.index.slots // PUT_SHARE, 1) - wait
        end = min(stored.end, stored.first + room) if store is not None and store.is_up else stored.first
        counters.offload_remote_dropped_blocks.add(stored.end - max(end, stored.first))
        if live.chain is None or end <= stored.first:
            return False
        slots = live.index.pin(live.sequence, stored.first, end)
        if not slots:
            return False
        keys = live.chain.keys[stored.first : stored.first + len(slots)]
        job = next(self._numbers)
        self._putting[job] = live, slots
        self._next.puts.append(PutJob(job, tuple(keys), tuple(slots)))
        return True

    def _end_put(self, ended: Ended) -> None:
        live, slots = self._putting.pop(ended.job)
        live.index.unpin(slots)
        live.let_go()
        if ended.no_room or ended.error:
            counters.offload_remote_dropped_blocks.add(len(slots))
        if ended.error and not ended.no_room:
            counters.offload_remote_errors.add()
        if not ended.error:
            counters.offload_remote_put_blocks.add(len(slots))


def prompt_tokens_of(scheduler_output: Any) -> int:
    """That a step computes: those of requests that have more than one to compute."""
    told = [*scheduler_output.new_requests, *scheduler_output.cached_requests]
    counts = [int(getattr(data, "num_scheduled_tokens", 0)) for data in told]
    return sum(count for count in counts if count > 1)
