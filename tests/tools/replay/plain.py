"""The scheduler of docs/replay.md once more, as plainly as it can be said: every iteration is stepped through, and all
tokens are reported in it. The replay's own is native and passes over iterations; both must count the same."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trtllm_kvfix.native import Admission as Admitted
from trtllm_kvfix.native import BlockManager, BlockManagerConfig, SequenceRequest
from trtllm_kvfix.tools.replay.engine import Workload
from trtllm_kvfix.tools.replay.outcome import AdmissionKind, CacheShape
from trtllm_kvfix.tools.replay.reserved_blocks import blocks_reserved_for


@dataclass
class Reuse:
    reused: int = 0
    host: int = 0
    remote: int = 0
    computed: int = 0


@dataclass
class Tally:
    """The fields of ReplayTally."""

    iterations: int = 0
    finished: int = 0
    iterations_admitting: int = 0
    deferred: int = 0
    overshoots: int = 0
    tokens_over: int = 0
    tokens_over_max: int = 0
    promises: int = 0
    promises_broken: int = 0
    tokens_short: int = 0
    tokens: Reuse = field(default_factory=Reuse)
    blocks: Reuse = field(default_factory=Reuse)


@dataclass
class Running:
    index: int
    to_compute: int
    to_grow: int
    computed: int = 0


class Plain:
    """A plain replay with the built-in host tier."""

    def __init__(self, workload: Workload, shape: CacheShape, admission: AdmissionKind) -> None:
        self.workload, self.shape, self.admission = workload, shape, admission
        config = BlockManagerConfig(
            tokens_per_block=shape.tokens_per_block, blocks_primary=shape.blocks_primary, blocks_host=shape.blocks_host
        )
        self.manager = BlockManager(config)
        self.needed = [blocks_reserved_for(request, shape) for request in workload.requests]
        fitting = (index for index, needed in enumerate(self.needed) if needed <= shape.blocks_primary)
        self.waiting = deque(fitting)
        self.running: list[Running] = []
        self.now_ms = 0.0
        self.tally = Tally()

    def run(self) -> Tally:
        while self.waiting or self.running:
            if not self.running:
                self.now_ms = max(self.now_ms, self.workload.requests[self.waiting[0]].timestamp_ms)
            self.step()
            self.tally.iterations += 1
            self.now_ms += self.shape.iteration_ms
        return self.tally

    def step(self) -> None:
        generating = [one for one in self.running if not one.to_compute]
        each = self.shape.tokens_per_iteration
        budget = self.shape.max_num_tokens - sum(min(each, one.to_grow) for one in generating)
        prompts = [one for one in self.running if one.to_compute]
        room = budget - sum(one.to_compute for one in prompts)
        if room > 0:
            admitted = self.admit(room, is_alone=not prompts)
            self.running += admitted
            prompts += admitted
        for one in generating:
            self.grow(one, min(each, one.to_grow))
        transfers = self.manager.take_transfers()
        self.tally.tokens.host += sum(item.tokens for item in transfers.items if item.kind == "onboard")
        self.manager.complete(transfers.ticket)
        for one in prompts:
            tokens = min(one.to_compute, budget)
            budget -= tokens
            one.to_compute -= tokens
            one.computed += tokens
            self.manager.store_context_blocks(one.index, one.computed)
        self.let_go([*generating, *prompts])

    def admit(self, budget: int, *, is_alone: bool) -> list[Running]:
        offers = self.offers(budget)
        if not offers:
            return []
        if is_alone and offers[0][0].num_tokens - offers[0][1] > budget:
            del offers[1:]
            budget = offers[0][0].num_tokens - offers[0][1]
        requests = [request for request, _ in offers]
        if self.admission is AdmissionKind.BATCH:
            admitted = self.manager.add_sequence_batch(requests, tokens_new_max=budget).admitted
        else:
            admitted, left = [], budget
            for request, promised in offers:
                left -= request.num_tokens - promised
                if left < 0:
                    break
                admitted.append(self.manager.add_sequence(request))
        self.count(budget, [promised for _, promised in offers], admitted)
        return [self.begin(one) for one in admitted]

    def offers(self, budget: int) -> list[tuple[SequenceRequest, int]]:
        out: list[tuple[SequenceRequest, int]] = []
        blocks = self.shape.blocks_primary - sum(self.needed[one.index] for one in self.running)
        for index in list(self.waiting)[: self.shape.max_batch_size - len(self.running)]:
            source = self.workload.requests[index]
            blocks -= self.needed[index]
            is_early = self.shape.iteration_ms > 0 and source.timestamp_ms > self.now_ms
            if blocks < 0 or budget < 0 or is_early:
                break
            tokens = self.workload.book.prompt(index)
            request = SequenceRequest(index, tokens, lora_id=source.lora_id, salt=source.salt)
            promised = self.manager.analyze_prefix_reuse(request).tokens
            budget -= request.num_tokens - promised
            out.append((request, promised))
        return out

    def begin(self, admission: Admitted) -> Running:
        index = self.waiting.popleft()
        assert index == admission.request_id
        grows = max(self.workload.requests[index].output_length - 1, 0)
        return Running(index, admission.tokens_new, grows, admission.tokens_reused)

    def grow(self, one: Running, tokens: int) -> None:
        first = one.computed - self.workload.requests[one.index].input_length
        values = self.workload.book.answer(one.index)[first : first + tokens]
        self.manager.add_token(one.index, tokens, values, computed=one.computed)
        one.computed += tokens
        one.to_grow -= tokens

    def let_go(self, ran: Sequence[Running]) -> None:
        for one in ran:
            if not one.to_compute and not one.to_grow:
                self.manager.remove_sequence(one.index, computed=one.computed)
                self.running.remove(one)
                self.tally.finished += 1

    def count(self, budget: int, promised: Sequence[int], admitted: Sequence[Admitted]) -> None:
        tally = self.tally
        tally.iterations_admitting += bool(admitted)
        tally.deferred += len(promised) - len(admitted)
        over = sum(one.tokens_new for one in admitted) - budget
        if over > 0:
            tally.overshoots += 1
            tally.tokens_over += over
            tally.tokens_over_max = max(tally.tokens_over_max, over)
        for expected, one in zip(promised, admitted, strict=False):
            tally.promises += 1
            tally.promises_broken += one.tokens_reused != expected
            tally.tokens_short += max(expected - one.tokens_reused, 0)
            tally.tokens.reused += one.tokens_reused
            tally.tokens.computed += one.tokens_new
            tally.blocks.reused += one.blocks_reused
            tally.blocks.host += one.blocks_onboarded
            tally.blocks.computed += one.blocks_new
