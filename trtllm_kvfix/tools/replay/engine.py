"""The replay itself: a small, explicit scheduler in front of a real block manager. docs/replay.md describes the model.

One iteration admits waiting requests within the token budget, grows the answers, runs the transfers that both asked
for, computes prompts, and lets go of what is finished. Nothing here looks at a clock: the same trace gives the same
numbers everywhere.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import perf_counter
from typing import NamedTuple

import numpy as np

from trtllm_kvfix.blocks.identity import Identity
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import Admission as Admitted
from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest
from trtllm_kvfix.tools.replay.generating import Generating
from trtllm_kvfix.tools.replay.host_tier import ConnectorTier, HostTier, Known
from trtllm_kvfix.tools.replay.outcome import Admission, CacheShape, HostTierKind, Outcome, Requests
from trtllm_kvfix.tools.replay.remote_tier import RemoteTier
from trtllm_kvfix.tools.replay.room import blocks_reserved_for, refused
from trtllm_kvfix.tools.replay.tally import Tally
from trtllm_kvfix.tools.replay.tokens import TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest


class Workload(NamedTuple):
    name: str
    requests: Sequence[TraceRequest]
    book: TokenBook


@dataclass(frozen=True, slots=True)
class _Offer:
    """A waiting request and the reuse that the manager promises it at this moment."""

    index: int
    request: SequenceRequest
    tokens_promised: int

    @property
    def tokens_new(self) -> int:
        return self.request.num_tokens - self.tokens_promised


@dataclass(slots=True)
class _Prompt:
    """An admitted prompt that is not computed to its end."""

    index: int
    length: int
    tokens_left: int
    is_loading: bool = False  # until the next iteration


class Replay:
    """One pass over a workload. Request ids are indices into it."""

    def __init__(
        self,
        workload: Workload,
        shape: CacheShape,
        admission: Admission = Admission.BATCH,
        tier: HostTier | None = None,
    ) -> None:
        """tier: instead of what `shape` asks for, where a host tier of some other making is to be measured."""
        _check(shape)
        self._workload = workload
        self._shape = shape
        self._admission = admission
        self._manager = _manager(shape)
        self._blocks_needed = [blocks_reserved_for(request, shape) for request in workload.requests]
        turned_away = set(refused(workload.requests, shape))
        self._waiting = deque(index for index in range(len(workload.requests)) if index not in turned_away)
        self._refused = len(turned_away)
        self._built: dict[int, SequenceRequest] = {}
        self._computing: list[_Prompt] = []
        self._generating = Generating(workload.book, shape.tokens_per_block, shape.tokens_per_iteration)
        self._blocks_reserved = 0
        self._finished = 0
        self._now_ms = 0.0
        self._tally = Tally(shape.bytes_per_block)
        if tier is None and shape.host_tier is HostTierKind.CONNECTOR and shape.blocks_host:
            tier = self._connector()
        self._tier = tier
        self._tier_is_quiet = tier is None
        if tier is not None:
            tier.attach(self._manager)

    def run(self, on_finished: Callable[[int], object] = lambda _count: None) -> Outcome:
        """Replay to the end; ctrl-C ends it early with what has been counted so far, marked partial."""
        started = perf_counter()
        partial = False
        try:
            while self._waiting or self._active:
                finished_before = self._finished
                self._iterate()
                self._pass_quiet_iterations()
                if self._finished != finished_before:
                    on_finished(self._finished + self._refused)
        except KeyboardInterrupt:
            partial = True
        requests = Requests(total=len(self._workload.requests), finished=self._finished, refused=self._refused)
        return self._tally.outcome(
            admission=self._admission,
            partial=partial,
            shape=self._shape,
            requests=requests,
            counters=self._manager.get_kv_cache_stats().total,
            counted=None if self._tier is None else self._tier.counted(),
            elapsed_s=perf_counter() - started,
        )

    def _connector(self) -> ConnectorTier:
        shape, admission = self._shape, self._shape.host_admission.value
        sizes = shape.blocks_host, shape.tokens_per_block
        if shape.blocks_remote:
            return RemoteTier(*sizes, self.known, shape.blocks_remote, admission)
        return ConnectorTier(*sizes, self.known, admission)

    def known(self, index: int) -> Known:
        """What a host tier may know of a request."""
        source, book = self._workload.requests[index], self._workload.book
        tokens = np.concatenate((book.prompt(index), book.answer(index)))
        return Known(Identity(source.lora_id, source.salt), tokens, source.input_length)

    @property
    def _active(self) -> int:
        return len(self._computing) + len(self._generating)

    def _iterate(self) -> None:
        if not self._active:
            self._now_ms = max(self._now_ms, self._workload.requests[self._waiting[0]].timestamp_ms)
        budget = self._shape.max_num_tokens - self._generating.tokens_next()
        budget_free = budget - sum(prompt.tokens_left for prompt in self._computing)
        if budget_free > 0:
            self._admit(budget_free)
        if self._tier is not None:
            self._tier_is_quiet = self._tier.step(self._running(of_all=not self._tier_is_quiet)) is True
        self._generating.grow(self._manager)
        self._run_transfers()
        if self._computing:
            self._compute(budget)
        finished = self._generating.take_finished()
        if self._tier is not None:
            self._tier.finish(list(finished))
        for index, computed in finished.items():
            self._manager.remove_sequence(index, computed=computed)
            self._blocks_reserved -= self._blocks_needed[index]
            self._finished += 1
        self._tally.iterations += 1
        self._now_ms += self._shape.iteration_ms

    def _pass_quiet_iterations(self) -> None:
        """Those ahead in which nobody comes, goes, computes a prompt, fills a block or needs one: only time goes on."""
        if self._computing or not self._tier_is_quiet:
            return
        next_ms = inf
        if self._has_room():
            # Only requests that come later leave iterations to pass.
            next_ms = self._workload.requests[self._waiting[0]].timestamp_ms if self._shape.iteration_ms else -inf
        passed, quiet = 0, self._generating.quiet()
        while passed < quiet and self._now_ms < next_ms:
            self._now_ms += self._shape.iteration_ms  # one by one, because a product would round otherwise
            passed += 1
        self._generating.skip(passed)
        self._tally.iterations += passed

    def _has_room(self) -> bool:
        """For the first that waits, as far as sequences and blocks go."""
        if not self._waiting or self._active >= self._shape.max_batch_size:
            return False
        return self._blocks_reserved + self._blocks_needed[self._waiting[0]] <= self._shape.blocks_primary

    def _admit(self, budget: int) -> None:
        offers = list(self._offers(budget))
        if not offers:
            return
        if offers[0].tokens_new > budget and not self._computing:
            # No iteration will have more room for it: it is admitted alone and computed in chunks.
            offers = offers[:1]
            budget = offers[0].tokens_new
        add = self._add_batch if self._admission is Admission.BATCH else self._add_one_by_one
        admitted = add(offers, budget)
        self._tally.count_admissions(budget, [offer.tokens_promised for offer in offers], admitted)
        for admission in admitted:
            index = self._waiting.popleft()
            assert index == admission.request_id, "requests are admitted in the order in which they wait"
            length = self._built.pop(index).num_tokens
            self._computing.append(self._prompt(index, length, admission))
            self._blocks_reserved += self._blocks_needed[index]

    def _prompt(self, index: int, length: int, admission: Admitted) -> _Prompt:
        if self._tier is None:
            return _Prompt(index, length, admission.tokens_new)
        found = self._tier.find(index, admission.tokens_reused)
        self._tally.count_load(admission.tokens_reused, self._shape.tokens_per_block, found)
        return _Prompt(index, length, admission.tokens_new - found.tokens, is_loading=found.tokens > 0)

    def _running(self, *, of_all: bool) -> list[tuple[int, int]]:
        prompts = [(one.index, one.length - one.tokens_left) for one in self._computing if not one.is_loading]
        return prompts + self._generating.computed(of_all=of_all)

    def _offers(self, budget: int) -> Iterator[_Offer]:
        """Waiting requests in order, up to and including the first that the budget has no room for."""
        blocks_free = self._shape.blocks_primary - self._blocks_reserved
        for index in islice(self._waiting, self._shape.max_batch_size - self._active):
            blocks_free -= self._blocks_needed[index]
            has_arrived = self._shape.iteration_ms == 0 or self._workload.requests[index].timestamp_ms <= self._now_ms
            if blocks_free < 0 or budget < 0 or not has_arrived:
                return
            request = self._request(index)
            offer = _Offer(index, request, self._manager.analyze_prefix_reuse(request).tokens)
            budget -= offer.tokens_new
            yield offer

    def _add_batch(self, offers: Sequence[_Offer], budget: int) -> list[Admitted]:
        return self._manager.add_sequence_batch([offer.request for offer in offers], tokens_new_max=budget).admitted

    def _add_one_by_one(self, offers: Sequence[_Offer], budget: int) -> list[Admitted]:
        """What a scheduler does that trusts its estimates: choose by them, then add each request by itself."""
        admitted = []
        for offer in offers:
            budget -= offer.tokens_new
            if budget < 0:
                break
            admitted.append(self._manager.add_sequence(offer.request))
        return admitted

    def _run_transfers(self) -> None:
        transfers = self._manager.take_transfers()
        if self._tally.expects_onboards():
            self._tally.count_onboards(transfers.items)
        self._manager.complete(transfers.ticket)

    def _compute(self, budget: int) -> None:
        """Spend the budget on prompts in order of admission; one that gets all it needs starts to generate."""
        unfinished = []
        for prompt in self._computing:
            if prompt.is_loading:
                prompt.is_loading = False
                unfinished.append(prompt)
                continue
            tokens = min(prompt.tokens_left, budget)
            budget -= tokens
            prompt.tokens_left -= tokens
            self._manager.store_context_blocks(prompt.index, prompt.length - prompt.tokens_left)
            if prompt.tokens_left:
                unfinished.append(prompt)
            else:
                self._generating.start(prompt.index, prompt.length)
        self._computing = unfinished

    def _request(self, index: int) -> SequenceRequest:
        if index not in self._built:
            source = self._workload.requests[index]
            tokens = self._workload.book.prompt(index)
            self._built[index] = SequenceRequest(index, tokens, lora_id=source.lora_id, salt=source.salt)
        return self._built[index]


def _check(shape: CacheShape) -> None:
    needed = shape.max_batch_size * shape.tokens_per_iteration
    if shape.max_num_tokens < needed:
        raise SettingsError(
            f"max_num_tokens is {shape.max_num_tokens}: {shape.max_batch_size} sequences generating "
            f"{shape.tokens_per_iteration} tokens each need {needed} in every iteration; lower max_batch_size"
        )


def _manager(shape: CacheShape) -> BlockManager:
    try:
        return BlockManager(
            BlockManagerConfig(
                tokens_per_block=shape.tokens_per_block,
                blocks_primary=shape.blocks_primary,
                blocks_host=shape.blocks_host if shape.host_tier is HostTierKind.BUILT_IN else 0,
            )
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    except MemoryError as error:
        raise SettingsError(
            f"a model of {shape.blocks_primary:,} primary and {shape.blocks_host:,} host blocks of "
            f"{shape.tokens_per_block} tokens does not fit this machine's memory; use larger blocks or smaller pools"
        ) from error
