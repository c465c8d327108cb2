"""The model's face: the methods of BlockManager, with blocks where the real one has ids."""

from collections.abc import Iterator
from contextlib import suppress

from . import asking, chunks, conservation, growth, pins, preemption, pruning, storing, transfers
from .admission import Plan, fit, plan_batch, within_budget
from .applying import apply_batch
from .state import Block, Sequence, State, Transfer, Window
from .values import (
    PRIORITY_DEFAULT,
    BatchAdmission,
    Config,
    OutOfBlocks,
    PrefixReuse,
    Request,
    RequestStats,
    Tier,
    UnknownRequest,
)


def check_whole_tokens(seq: Sequence, tokens: list[int]) -> None:
    if len(tokens) > max(seq.length, len(seq.request.tokens)) or tokens[: len(seq.known)] != seq.known:
        raise ValueError("tokens do not repeat what is known")
    if len(tokens) > len(seq.known) and seq.request.beam_width > 1:
        raise ValueError("each beam has tokens of its own")


def check_computed(seq: Sequence, computed: int) -> None:
    if not 0 <= computed <= seq.length:
        raise ValueError(f"{computed} positions computed of {seq.length}")


def check_reported_tokens(seq: Sequence, tokens: list[int] | None, computed: int | None) -> None:
    check_computed(seq, computed or 0)
    if tokens is not None:
        check_whole_tokens(seq, tokens)


def learn_reported_tokens(seq: Sequence, tokens: list[int] | None, computed: int | None) -> None:
    if tokens is not None and len(tokens) > len(seq.known):
        seq.known = list(tokens)
    seq.tokens_computed = max(seq.tokens_computed, computed or 0)


class ModelManager:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.state = State(config, [Window(shape) for shape in config.windows])

    def sequence(self, request_id: int) -> Sequence:
        seq = self.any_sequence(request_id)
        if seq.suspended:
            raise ValueError(f"request {request_id} is suspended")
        return seq

    def any_sequence(self, request_id: int) -> Sequence:
        if request_id not in self.state.sequences:
            raise UnknownRequest(request_id)
        return self.state.sequences[request_id]

    def live(self) -> list[int]:
        return [request_id for request_id, seq in self.state.sequences.items() if not seq.suspended]

    def suspended(self) -> list[int]:
        return [request_id for request_id, seq in self.state.sequences.items() if seq.suspended]

    def suspend_sequence(self, request_id: int) -> int:
        return preemption.suspend(self.state, self.sequence(request_id))

    def resume_sequence(self, request_id: int) -> int:
        return preemption.resume(self.state, self.any_sequence(request_id))

    def blocks_to_resume(self, request_id: int) -> list[int]:
        return preemption.blocks_to_resume(self.state, self.any_sequence(request_id))

    def add_sequence_batch(
        self, requests: list[Request], tokens_new_max: int | None = None, chunk: int | None = None
    ) -> BatchAdmission:
        if chunk == 0:
            raise ValueError("a chunk of nothing")
        ids = [request.request_id for request in requests]
        for request in requests:
            if ids.count(request.request_id) > 1 or request.request_id in self.state.sequences:
                raise ValueError(f"request {request.request_id} is in the batch twice, or live")
            if request.beam_width > self.config.max_beam_width:
                raise ValueError(f"request {request.request_id}: beam_width {request.beam_width}")
        plans = self.fitting(requests, tokens_new_max, chunk) or self.fitting(requests[:1], tokens_new_max, chunk)
        return BatchAdmission(apply_batch(self.state, plans), ids[len(plans) :])

    def fitting(self, requests: list[Request], tokens_new_max: int | None, chunk: int | None) -> list[Plan]:
        plans = within_budget(plan_batch(self.state, requests, chunk), tokens_new_max)
        fit(self.state, plans)
        return within_budget(plans, tokens_new_max)

    def named_once(self, ids: list[int]) -> Iterator[Sequence]:
        for position, request_id in enumerate(ids):
            seq = self.sequence(request_id)
            if request_id in ids[:position]:
                raise ValueError(f"request {request_id} is named twice")
            yield seq

    def add_tokens(
        self,
        ids: list[int],
        counts: list[int],
        tokens: list[int] | None = None,
        computed: list[int] | None = None,
    ) -> None:
        grown: list[growth.Growth] = []
        at = 0
        for position, (seq, count) in enumerate(zip(self.named_once(ids), counts, strict=True)):
            prompt = len(seq.request.tokens)
            more = max(seq.length + count, prompt) - max(seq.length, prompt)
            values = None if tokens is None else tokens[at : at + more]
            at += more
            if values is not None and seq.request.beam_width > 1:
                raise ValueError("each beam has tokens of its own")
            if values and len(seq.known) < max(seq.length, prompt):
                raise ValueError("values after a position of unknown value")
            done = 0 if computed is None else computed[position]
            check_computed(seq, done)
            grown.append(growth.Growth(seq, count, values, done))
        growth.add_tokens(self.state, grown)

    def rewind_kv_cache(self, request_id: int, count: int) -> None:
        growth.rewind(self.state, self.sequence(request_id), count)

    def store_context_blocks(self, request_id: int, tokens_computed: int) -> None:
        seq = self.sequence(request_id)
        if not 0 <= tokens_computed <= min(seq.length, len(seq.request.tokens)):
            raise ValueError(f"{tokens_computed} is not within the prompt")
        seq.tokens_computed = max(seq.tokens_computed, tokens_computed)
        for w in range(len(self.state.windows)):
            of_prompt = min(seq.tokens_computed, len(seq.request.tokens))
            if not seq.rooms[w].rolls:
                storing.enter_tree(self.state, seq, w, of_prompt, partial=False)
            growth.leave(self.state, seq, w)
        for w in range(len(self.state.windows)):
            chunks.settle(self.state, seq, w)

    def remove_sequence(
        self,
        request_id: int,
        store: bool = True,
        pin: bool = False,
        tokens: list[int] | None = None,
        computed: int | None = None,
    ) -> list[Block]:
        seq = self.any_sequence(request_id)
        check_reported_tokens(seq, tokens, computed)
        if pin and seq.suspended:
            raise ValueError(f"request {request_id} is suspended")
        pinned = pins.pin_sequence(self.state, seq) if pin else []
        learn_reported_tokens(seq, tokens, computed)
        storing.remove(self.state, seq, store)
        return pinned

    def truncate_blocks(self, request: Request, tokens_kept: int) -> int:
        return pruning.truncate(self.state, request, tokens_kept)

    def pin_blocks_by_id(self, blocks: list[Block]) -> list[Tier]:
        return pins.pin_blocks(self.state, blocks)

    def unpin_blocks_by_id(self, blocks: list[Block], tier: Tier | None = None) -> None:
        pins.unpin_blocks(self.state, blocks, tier)

    def analyze_prefix_reuse(self, request: Request, chunk: int | None = None) -> PrefixReuse:
        plan = plan_batch(self.state, [request], chunk)[0]
        with suppress(OutOfBlocks):  # one that does not fit at all may still ask what it would find
            fit(self.state, [plan])
        blocks = [block for w in range(len(self.state.windows)) for block in plan.found(w)]
        in_primary = sum(block.slots["primary"] is not None for block in blocks)
        return PrefixReuse(plan.reuse, in_primary, len(blocks) - in_primary)

    def blocks_to_admit(self, request: Request, tokens_new_max: int = 0, chunk: int | None = None) -> list[int]:
        plan = plan_batch(self.state, [request], chunk)[0]
        with suppress(OutOfBlocks):
            fit(self.state, [plan])
        return asking.blocks_to_admit(self.state, plan, tokens_new_max)

    def blocks_to_grow(self, ids: list[int], counts: list[int]) -> int:
        return asking.blocks_to_grow(self.state, [self.sequence(each) for each in ids], counts)

    def free_blocks_without(self, ids: list[int]) -> list[int]:
        return asking.free_blocks_without(self.state, [self.sequence(each) for each in ids])

    def get_token_count(self, request_id: int) -> int:
        return self.any_sequence(request_id).length

    def get_num_front_blocks_removed(self, request_id: int, w: int) -> int:
        return asking.front_blocks_removed(self.any_sequence(request_id), w)

    def get_cache_blocks(self, request_id: int, w: int) -> list[list[Block | None]]:
        """[beam][position]; None where the block has left the window."""
        seq = self.sequence(request_id)
        return [
            [None if c.left else c.blocks[min(beam, len(c.blocks) - 1)] for c in seq.columns[w]]
            for beam in range(seq.request.beam_width)
        ]

    def take_transfers(self) -> tuple[int, list[Transfer]]:
        return transfers.take(self.state)

    def complete(self, ticket: int) -> None:
        transfers.complete(self.state, ticket)

    def fail(self, ticket: int) -> list[int]:
        return transfers.fail(self.state, ticket)

    def advance_time(self, now_ms: int) -> None:
        if now_ms < self.state.now_ms:
            raise ValueError(f"{now_ms} is before {self.state.now_ms}")
        self.state.now_ms = now_ms
        due = [b for w in self.state.windows for b in w.tree() if b.deadline_ms is not None and b.deadline_ms <= now_ms]
        for block in sorted(due, key=lambda b: (b.deadline_ms, b.clock_started_at)):
            self.state.set_retention(block, PRIORITY_DEFAULT, None)

    def refresh_blocks(self) -> None:
        self.state.iteration, self.state.current = self.state.current, {}

    def reset_reuse_state(self) -> None:
        for window in self.state.windows:
            for root in window.roots:
                for top in list(root.children):
                    self.state.take_out(top)

    def get_request_stats(self, request_id: int) -> RequestStats:
        return self.any_sequence(request_id).stats

    def check_invariants(self) -> None:
        conservation.check(self.state)
