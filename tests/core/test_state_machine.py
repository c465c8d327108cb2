"""The core against the reference model, step by step, through every method.

`make test` runs it within bounds; `HYPOTHESIS_PROFILE=fuzz` runs it long. A failure prints the steps that lead to it,
minimised, and a blob that replays them. Whoever changes a rule of docs/block-manager.md changes the model with it.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from . import pair_verbs
from . import strategies as draws
from .bad_calls import BAD_CALLS
from .model import Config, Request
from .model.values import Tier, Tokens
from .pair import Pair
from .waiting import WaitingRequests

UNHEARD_INDEX = 29


def has_live(machine: "BlockManagerMachine") -> bool:
    return bool(machine.pair.model.state.sequences)


class BlockManagerMachine(WaitingRequests):
    @initialize(
        config=draws.configs(),
        events_max=st.sampled_from([100_000, 3, 0]),
        hash_bits=st.sampled_from([128, 128, 4, 1]),
        past=st.lists(draws.prompts(), min_size=2, max_size=6),
    )
    def start(self, config: Config, events_max: int, hash_bits: int, past: list[Tokens]) -> None:
        self.pair = Pair(config, events_max, hash_bits)
        for prompt in past:
            self.serve(Request(self.new_id(), prompt), leave=True)

    def serve(self, request: Request, leave: bool) -> None:
        """Does what an engine would: admit, copy, compute, and perhaps finish."""
        if self.pair.add([request]):
            self.pair.check()
            self.run_all_transfers()
            self.pair.store_context(request.request_id, len(request.tokens))
            if leave:
                self.pair.remove(request.request_id)

    def live(self, index: int) -> int:
        """A live request. Rarely, or if there is none, one that is not live."""
        ids = list(self.pair.model.state.sequences)
        return ids[index % len(ids)] if ids and index < UNHEARD_INDEX else self.ids_used + 1

    def length(self, request_id: int) -> int:
        live = self.pair.model.state.sequences.get(request_id)
        return live.length if live else 0

    # ------------------------------------------------------------------------------------------ sequences

    @rule(
        data=st.data(),
        count=st.integers(1, 3),
        budget=st.none() | st.integers(0, 24),
        carrier=draws.carriers,
        chunk=draws.chunks,
    )
    def add(self, data: st.DataObject, count: int, budget: int | None, carrier: str, chunk: int | None) -> None:
        beams = self.pair.model.config.max_beam_width
        batch: list[Request] = [data.draw(draws.requests(self.new_id(), beams)) for _ in range(count)]
        self.pair.add(batch, budget, carrier, chunk)

    @rule(data=st.data(), chunk=st.integers(1, 5), leave=st.booleans())
    def serve_in_chunks(self, data: st.DataObject, chunk: int, leave: bool) -> None:
        """A prompt that was admitted in chunks finds room for all of them."""
        request = data.draw(draws.requests(self.new_id(), self.pair.model.config.max_beam_width))
        if not self.pair.add([request], chunk=chunk):
            return
        self.run_all_transfers()
        while self.length(request.request_id) < len(request.tokens):
            self.pair.check()
            computed = self.length(request.request_id)
            count = min(chunk, len(request.tokens) - computed)
            assert self.pair.grow([request.request_id], [count], computed=[computed])
        if leave:
            self.pair.check()
            self.pair.remove(request.request_id, computed=len(request.tokens))

    @rule(data=st.data(), leave=st.booleans())
    def serve_one(self, data: st.DataObject, leave: bool) -> None:
        self.serve(data.draw(draws.requests(self.new_id(), self.pair.model.config.max_beam_width)), leave)

    @rule(data=st.data(), index=draws.indices)
    def add_again(self, data: st.DataObject, index: int) -> None:
        self.pair.add([data.draw(draws.requests(self.live(index), self.pair.model.config.max_beam_width + 1))])
        self.ids_used += 1

    @precondition(has_live)
    @rule(data=st.data(), indices=st.lists(draws.indices, max_size=3), carrier=draws.carriers, known=st.booleans())
    def grow(self, data: st.DataObject, indices: list[int], carrier: str, known: bool) -> None:
        ids = [self.live(index) for index in indices]
        counts = data.draw(st.lists(st.integers(0, 5), min_size=len(ids), max_size=len(ids)))
        more = sum(pair_verbs.beyond_prompt(self.pair, *each) for each in zip(ids, counts, strict=True))
        values = data.draw(st.lists(draws.tokens, min_size=more, max_size=more)) if known else None
        self.pair.grow(ids, counts, values, carrier, self.reported(data, ids))

    @precondition(has_live)
    @rule(indices=st.lists(draws.indices, max_size=3))
    def decode_together(self, indices: list[int]) -> None:
        pair_verbs.decode_together(self.pair, [self.live(index) for index in indices])

    @precondition(lambda self: self.pair.decoding)
    @rule(tokens=st.none() | st.lists(draws.tokens, min_size=1, max_size=3), computed=st.booleans())
    def decode(self, tokens: list[int] | None, computed: bool) -> None:
        """The batch may be older than the end of some of its requests."""
        pair_verbs.decode(self.pair, tokens, computed=computed)

    def reported(self, data: st.DataObject, ids: list[int]) -> list[int] | None:
        """An engine reports mostly everything as computed, sometimes less, or more than there is, or nothing."""
        behind = data.draw(
            st.none() | st.lists(st.sampled_from([0, 0, 0, 1, 4, -1]), min_size=len(ids), max_size=len(ids))
        )
        return behind and [max(0, self.length(i) - less) for i, less in zip(ids, behind, strict=True)]

    @precondition(has_live)
    @rule(index=draws.indices, count=st.integers(0, 6))
    def rewind(self, index: int, count: int) -> None:
        self.pair.rewind(self.live(index), count)

    @precondition(has_live)
    @rule(index=draws.indices, cut=st.integers(-1, 4))
    def store_context(self, index: int, cut: int) -> None:
        request_id = self.live(index)
        self.pair.store_context(request_id, max(0, self.length(request_id) - cut))

    @precondition(has_live)
    @rule(
        index=draws.indices,
        store=st.sampled_from([True, True, True, False]),
        pin=st.sampled_from([False, False, True]),
        behind=st.sampled_from([None, 0, 0, 1, 5, -1]),
    )
    def remove(self, index: int, store: bool, pin: bool, behind: int | None) -> None:
        request_id = self.live(index)
        computed = max(0, self.length(request_id) - behind) if behind is not None else None
        self.pair.remove(request_id, store=store, pin=pin, computed=computed)

    @precondition(has_live)
    @rule(data=st.data(), index=draws.indices, repeat=st.sampled_from([True, True, False]), cut=st.integers(-1, 3))
    def remove_with_tokens(self, data: st.DataObject, index: int, repeat: bool, cut: int) -> None:
        request_id = self.live(index)
        live = self.pair.model.state.sequences.get(request_id)
        prefix = live.known if live and repeat else []
        more = max(0, self.length(request_id) - len(prefix) - cut)
        values = prefix + data.draw(st.lists(draws.tokens, min_size=more, max_size=more))
        self.pair.remove(request_id, tokens=values, computed=self.length(request_id))

    # ------------------------------------------------------------------------------------------ by name

    @precondition(has_live)
    @rule(index=draws.indices)
    def name_blocks(self, index: int) -> None:
        request_id = self.live(index)
        if request_id in self.pair.model.state.sequences:
            pair_verbs.check_hashes(self.pair, request_id)

    @rule(data=st.data(), kept=st.integers(0, 6))
    def truncate(self, data: st.DataObject, kept: int) -> None:
        pair_verbs.truncate(self.pair, data.draw(draws.requests(self.new_id(), 1)), kept)

    # ------------------------------------------------------------------------------------------ preemption

    @precondition(has_live)
    @rule(index=draws.indices)
    def suspend(self, index: int) -> None:
        pair_verbs.suspend(self.pair, self.live(index))

    @precondition(lambda self: self.pair.model.suspended())
    @rule(index=draws.indices)
    def resume(self, index: int) -> None:
        suspended = self.pair.model.suspended()
        pair_verbs.resume(self.pair, suspended[index % len(suspended)])

    # ------------------------------------------------------------------------------------------ pins

    @precondition(has_live)
    @rule(index=draws.indices)
    def pin_sequence(self, index: int) -> None:
        self.pair.pin_sequence(self.live(index))

    @precondition(lambda self: self.pair.names.known_ids())
    @rule(indices=st.lists(draws.indices, min_size=1, max_size=3))
    def pin_ids(self, indices: list[int]) -> None:
        known = self.pair.names.known_ids()
        self.pair.pin_ids([known[index % len(known)] for index in indices])

    @precondition(lambda self: self.pair.names.known_ids())
    @rule(indices=st.lists(draws.indices, min_size=1, max_size=3), tier=draws.tiers, pinned=st.booleans())
    def unpin_ids(self, indices: list[int], tier: Tier | None, pinned: bool) -> None:
        known = self.pair.names.known_ids()
        held = [i for i in known if any(self.pair.names.block(i).pins.values())] if pinned else []
        self.pair.unpin_ids([(held or known)[index % len(held or known)] for index in indices], tier)

    # ------------------------------------------------------------------------------------------ transfers

    @rule()
    def take(self) -> None:
        self.pair.take()

    @precondition(lambda self: self.pair.tickets)
    @rule(index=draws.indices)
    def complete(self, index: int) -> None:
        self.pair.complete(index % len(self.pair.tickets))

    @rule()
    def run_all_transfers(self) -> None:
        self.pair.take()
        while self.pair.tickets:
            self.pair.complete(0)

    @precondition(lambda self: self.pair.model.state.queued)
    @rule()
    def lose_transfers(self) -> None:
        self.pair.take()
        self.pair.fail(-1)

    @precondition(lambda self: self.pair.tickets)
    @rule(index=draws.indices)
    def fail(self, index: int) -> None:
        self.pair.fail(index % len(self.pair.tickets))

    # ------------------------------------------------------------------------------------------ the rest

    @rule(step_ms=st.integers(-1, 5))
    def advance_time(self, step_ms: int) -> None:
        self.pair.advance_time(self.pair.model.state.now_ms + step_ms)

    @rule()
    def refresh(self) -> None:
        self.pair.refresh()

    @rule(sure=st.sampled_from([False, False, True]))
    def reset_reuse_state(self, sure: bool) -> None:
        if sure:
            self.pair.reset_reuse_state()

    @rule()
    def read_events(self) -> None:
        self.pair.read_events()

    @rule(name=st.sampled_from(sorted(BAD_CALLS)))
    def bad_call(self, name: str) -> None:
        error, call = BAD_CALLS[name]
        digest = self.pair.core.digest()
        with pytest.raises(error):
            call(self.pair.core)
        assert self.pair.core.digest() == digest, "a refused call changed something"

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()


TestBlockManager = BlockManagerMachine.TestCase
if settings.get_current_profile_name() != "fuzz":
    TestBlockManager.settings = settings(
        max_examples=150,
        stateful_step_count=40,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
