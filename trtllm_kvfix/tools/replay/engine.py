"""The replay itself: requests, a scheduler and a real block manager. docs/replay.md describes the model.

The scheduler is native (cpp/replay), because it steps through a hundred thousand iterations. Here is what it works
with, and what comes of it. Nothing looks at a clock: the same trace gives the same numbers everywhere.
"""

from collections.abc import Callable, Collection, Sequence
from math import isfinite
from time import perf_counter
from typing import NamedTuple

import numpy as np

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import (
    BlockManager,
    BlockManagerConfig,
    CacheCounters,
    ReplayRequests,
    ReplayReuse,
    ReplayScheduler,
    ReplayTally,
)
from trtllm_kvfix.offload.policy import always
from trtllm_kvfix.tools.replay.host_tier import (
    HostTier,
    KnownRequest,
    PolicyTier,
    TierCounts,
    TimedHits,
    always_fetched,
)
from trtllm_kvfix.tools.replay.outcome import (
    AdmissionKind,
    Budget,
    CacheShape,
    HostTierKind,
    Moved,
    ReplayOutcome,
    RequestCounts,
    Reuse,
)
from trtllm_kvfix.tools.replay.reserved_blocks import blocks_reserved_for, refused
from trtllm_kvfix.tools.replay.tokens import PROMPT_BASE, PROMPT_SPAN, TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest

TOKENS_MAX = 2**31 - 1  # in an iteration; a prompt has no more
ITERATIONS = 256  # at most in one native call: ctrl-C is heard between two


class Workload(NamedTuple):
    name: str
    requests: Sequence[TraceRequest]
    book: TokenBook


class Replay:
    """One pass over a workload. Request ids are indices into it."""

    def __init__(
        self,
        workload: Workload,
        shape: CacheShape,
        admission: AdmissionKind = AdmissionKind.BATCH,
        tier: HostTier | None = None,
    ) -> None:
        """tier: instead of what `shape` asks for, where a host tier of some other making is to be measured."""
        _check(shape)
        self._workload = workload
        self._shape = shape
        self._admission = admission
        self._host_hits = _timed_hits(shape, "host", shape.host_gb_per_s)
        self._store_hits = _timed_hits(shape, "store", shape.store_gb_per_s)
        self._manager = _manager(shape)
        turned_away = set(refused(workload.requests, shape))
        self._refused = len(turned_away)
        self._scheduler = ReplayScheduler(
            self._manager,
            _requests(workload, shape, turned_away),
            [index for index in range(len(workload.requests)) if index not in turned_away],
            blocks_primary=shape.blocks_primary,
            max_batch_size=shape.max_batch_size,
            max_num_tokens=shape.max_num_tokens,
            tokens_per_iteration=shape.tokens_per_iteration,
            iteration_ms=shape.iteration_ms,
            one_by_one=admission is AdmissionKind.ONE_BY_ONE,
        )
        if tier is None and shape.host_tier is HostTierKind.CONNECTOR and shape.blocks_host:
            sizes = shape.blocks_host, shape.tokens_per_block
            is_worth = always if self._host_hits is None else self._host_hits.is_worth
            is_fetch_worth = always_fetched if self._store_hits is None else self._store_hits.are_worth
            tier = PolicyTier(
                *sizes, self.known, shape.host_admission.value, shape.blocks_remote, is_worth, is_fetch_worth
            )
        self._tier = tier
        if tier is not None:
            tier.attach(self._manager)

    def run(self, on_finished: Callable[[int], object] = lambda _count: None) -> ReplayOutcome:
        """Replay to the end; ctrl-C ends it early with what has been counted so far, marked partial."""
        started = perf_counter()
        partial = False
        try:
            while self._scheduler.advance(ITERATIONS, self._tier):
                on_finished(self._scheduler.tally.finished + self._refused)
            on_finished(self._scheduler.tally.finished + self._refused)
        except KeyboardInterrupt:
            partial = True
        return self._outcome(partial=partial, elapsed_s=perf_counter() - started)

    def known(self, index: int) -> KnownRequest:
        """The part of a request that a host tier may know."""
        source, book = self._workload.requests[index], self._workload.book
        tokens = np.concatenate((book.prompt(index), book.answer(index)))
        return KnownRequest(Identity(source.lora_id, source.salt), tokens, source.input_length)

    def _outcome(self, *, partial: bool, elapsed_s: float) -> ReplayOutcome:
        tally, counters = self._scheduler.tally, self._manager.get_kv_cache_stats().total
        counted = None if self._tier is None else self._tier.counted()
        total = len(self._workload.requests)
        return ReplayOutcome(
            admission=self._admission,
            partial=partial,
            shape=self._shape,
            requests=RequestCounts(total=total, finished=tally.finished, refused=self._refused),
            iterations=tally.iterations,
            tokens=reuse_of(tally.tokens),
            blocks=reuse_of(tally.blocks),
            moved=moved_of(counters, counted or TierCounts(0, 0, 0), self._shape.bytes_per_block),
            blocks_dropped=counters.blocks_dropped if counted is None else counted.dropped,
            budget=budget_of(tally),
            elapsed_s=elapsed_s,
            hits=tuple(each for of in (self._host_hits, self._store_hits) if of for each in of.classes.seen()),
        )


def _requests(workload: Workload, shape: CacheShape, turned_away: Collection[int]) -> ReplayRequests:
    book, unspoken = workload.book, np.empty(0, np.int32)
    requests = ReplayRequests(PROMPT_BASE, PROMPT_SPAN, book.tokens_per_hash_id)
    for index, request in enumerate(workload.requests):
        requests.add(
            book.ids(index) if request.tokens is None else request.tokens,
            is_spelled=request.tokens is None,
            prompt_length=request.input_length,
            answer=unspoken if index in turned_away else book.answer(index),
            timestamp_ms=request.timestamp_ms,
            blocks_needed=blocks_reserved_for(request, shape),
            lora_id=request.lora_id,
            salt=request.salt,
        )
    return requests


def _check(shape: CacheShape) -> None:
    if shape.max_num_tokens > TOKENS_MAX:
        raise SettingsError(f"max_num_tokens is {shape.max_num_tokens}: at most {TOKENS_MAX} can be modelled")
    if not isfinite(shape.iteration_ms):
        raise SettingsError(f"iteration_ms is {shape.iteration_ms}: a number of milliseconds is expected")
    needed = shape.max_batch_size * shape.tokens_per_iteration
    if shape.max_num_tokens < needed:
        raise SettingsError(
            f"max_num_tokens is {shape.max_num_tokens}: {shape.max_batch_size} sequences generating "
            f"{shape.tokens_per_iteration} tokens each need {needed} in every iteration; lower max_batch_size"
        )


def _timed_hits(shape: CacheShape, tier: str, gb_per_s: float | None) -> TimedHits | None:
    if shape.prefill_tokens_per_s is None or gb_per_s is None or shape.bytes_per_block is None:
        return None
    return TimedHits(
        tier, iteration_ms=shape.iteration_ms, block_s=shape.bytes_per_block / (gb_per_s * 1e9),
        tokens_per_block=shape.tokens_per_block, tokens_per_s=shape.prefill_tokens_per_s,
    )  # fmt: skip


def _manager(shape: CacheShape) -> BlockManager:
    try:
        return BlockManager(
            BlockManagerConfig(
                tokens_per_block=shape.tokens_per_block,
                blocks_primary=shape.blocks_primary,
                blocks_host=0 if shape.host_tier is HostTierKind.CONNECTOR else shape.blocks_host,
                host_admission="adaptive" if shape.blocks_host and shape.host_tier is HostTierKind.NATIVE else "all",
            )
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    except MemoryError as error:
        raise SettingsError(
            f"a model of {shape.blocks_primary:,} primary and {shape.blocks_host:,} host blocks of "
            f"{shape.tokens_per_block} tokens does not fit this machine's memory; use larger blocks or smaller pools"
        ) from error


def reuse_of(counted: ReplayReuse) -> Reuse:
    primary = counted.reused - counted.host
    return Reuse(primary=primary, host=counted.host, computed=counted.computed, remote=counted.remote)


def budget_of(tally: ReplayTally) -> Budget:
    return Budget(**{name: getattr(tally, name) for name in Budget.model_fields})


def moved_of(counters: CacheCounters, beside: TierCounts, bytes_per_block: int | None) -> Moved:
    """beside: what a host tier beside the manager moved."""

    def size(blocks: int) -> int | None:
        return None if bytes_per_block is None else blocks * bytes_per_block

    to_host = counters.blocks_offloaded + beside.stored
    to_primary = counters.blocks_onboarded + beside.loaded
    return Moved(
        blocks_to_host=to_host,
        blocks_to_primary=to_primary,
        blocks_within_primary=counters.blocks_copied,
        bytes_to_host=size(to_host),
        bytes_to_primary=size(to_primary),
        bytes_within_primary=size(counters.blocks_copied),
    )
