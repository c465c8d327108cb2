"""The core and the model side by side: each call goes to both; what it returns, raises and changes must agree."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from trtllm_kvfix import native

from .comparison import compare_everything
from .event_mirror import EventMirror
from .model import Admission, Config, ModelManager, Request
from .model.state import Transfer
from .model.values import BlockInFlight, OutOfBlocks, Tier, UnknownRequest
from .names import Names
from .native_values import carried, native_config, native_request

M = TypeVar("M")
C = TypeVar("C")


def outcome(call: Callable[[], M]) -> tuple[M | None, tuple[object, ...] | None]:
    """The value, or what kind of operating error it was."""
    try:
        return call(), None
    except (OutOfBlocks, native.OutOfBlocks) as error:
        if isinstance(error, OutOfBlocks):
            return None, ("OutOfBlocks", *error.numbers)
        return None, ("OutOfBlocks", error.blocks_needed, error.blocks_free, error.window_size)
    except (UnknownRequest, native.UnknownRequest):
        return None, ("UnknownRequest",)
    except (BlockInFlight, native.BlockInFlight):
        return None, ("BlockInFlight",)
    except ValueError:
        return None, ("ValueError",)


def free_blocks(core: native.BlockManager) -> list[int]:
    """Free or cached, and kept for nobody, per window."""
    return [window.primary.free + window.primary.cached - window.kept for window in core.get_kv_cache_stats().windows]


class Pair:
    def __init__(self, config: Config, events_max: int = 0, hash_bits: int = 128) -> None:
        if config.host_admission != "all":
            hash_bits = 128  # with few bits, most blocks are taken for one that is gone
        self.model = ModelManager(config)
        self.core = native.BlockManager(native_config(config, events_max, hash_bits))
        self.names = Names(self.model.state)
        self.mirror = EventMirror(hash_bits)
        self.events_max = events_max
        self.hash_bits = hash_bits
        self.tickets: list[tuple[int, int]] = []  # the model's and the core's
        self.waiting: list[tuple[Request, native.SequenceRequest]] = []  # asked about before they are added
        self.decoding: native.DecodeBatch | None = None  # the last batch that was made

    def both(self, on_model: Callable[[], M], on_core: Callable[[], C]) -> tuple[M, C] | None:
        """None if both raised the same, and the core stayed as it was."""
        digest = self.core.digest()
        expected, expected_error = outcome(on_model)
        actual, actual_error = outcome(on_core)
        assert actual_error == expected_error, f"core: {actual_error or actual}, model: {expected_error or expected}"
        if actual_error is not None:
            assert self.core.digest() == digest, f"{actual_error} changed something"
            return None
        return expected, actual  # type: ignore[return-value]

    def check(self) -> None:
        self.core.check_invariants()
        self.model.check_invariants()
        compare_everything(self)

    # ---------------------------------------------------------------------------------------------- sequences

    def object_of(self, request: Request, carrier: str = "list") -> native.SequenceRequest:
        """The core remembers what it found for an object, so one that waits stays the same. Another finds afresh."""
        for waiting, kept in self.waiting:
            if waiting is request:  # its id says nothing: some requests come under the id of another
                return kept
        return native_request(request, carrier)

    def wait(self, request: Request) -> None:
        self.waiting.append((request, native_request(request)))

    def add(
        self,
        requests: list[Request],
        tokens_new_max: int | None = None,
        carrier: str = "list",
        chunk: int | None = None,
    ) -> bool:
        promised = [self.analyze(request, chunk or None) for request in requests]
        asked = [self.blocks_to_admit(request, chunk) for request in requests]
        free = free_blocks(self.core)
        objects = [self.object_of(request, carrier) for request in requests]

        def on_core() -> tuple[list[native.Admission], list[int]]:
            if len(objects) == 1 and tokens_new_max is None:
                return [self.core.add_sequence(objects[0], chunk_tokens=chunk)], []
            answer = self.core.add_sequence_batch(objects, tokens_new_max=tokens_new_max, chunk_tokens=chunk)
            return answer.admitted, answer.deferred

        live = len(self.model.state.sequences)
        got = self.both(lambda: self.model.add_sequence_batch(requests, tokens_new_max, chunk), on_core)
        if len(requests) == 1 and len(self.model.state.sequences) > live:
            assert [before - taken for before, taken in zip(free, asked[0], strict=True)] == free_blocks(self.core)
        if got is None:
            return False
        expected, (admitted, deferred) = got
        assert deferred == expected.deferred
        compare_admissions(expected.admitted, admitted)
        if self.model.config.copy_on_partial_reuse:
            for admission, promise in zip(admitted, promised, strict=False):
                # Beside others a request may find no room for the source of a copy; alone it has what it was promised.
                least = promise if len(requests) == 1 else promise - promise % self.model.config.tokens_per_block
                assert admission.tokens_reused in (least, promise)
        first = [a.tokens_new if chunk is None else min(a.tokens_new, chunk) for a in admitted]
        assert tokens_new_max is None or sum(first) <= tokens_new_max
        return True

    def analyze(self, request: Request, chunk: int | None = None) -> int:
        digest = self.core.digest()
        expected = self.model.analyze_prefix_reuse(request, chunk)
        actual = self.core.analyze_prefix_reuse(self.object_of(request), chunk_tokens=chunk)
        assert (actual.tokens, actual.blocks_primary, actual.blocks_host) == (
            expected.tokens,
            expected.blocks_primary,
            expected.blocks_host,
        )
        assert self.core.digest() == digest, "looking changed something"
        return actual.tokens

    def blocks_to_admit(self, request: Request, chunk: int | None) -> list[int]:
        asked = self.object_of(request)
        for tokens in (0, 5, 40) if chunk != 0 else ():
            expected = self.model.blocks_to_admit(request, tokens, chunk)
            assert self.core.blocks_to_admit(asked, tokens_new_max=tokens, chunk_tokens=chunk) == expected
        return self.model.blocks_to_admit(request, 0, chunk)

    def grow(
        self,
        ids: list[int],
        counts: list[int],
        tokens: list[int] | None = None,
        carrier: str = "list",
        computed: list[int] | None = None,
    ) -> bool:
        def on_core() -> bool:
            values = None if tokens is None else carried(tokens, carrier)
            if carrier == "tuple" and len(ids) == len(counts) == 1:
                self.core.add_token(ids[0], counts[0], values, computed=None if computed is None else computed[0])
            else:
                done = None if computed is None else carried(computed, carrier)
                self.core.add_tokens(carried(ids, carrier), carried(counts, carrier), values, computed=done)
            return True

        if len(set(ids)) == len(ids) == len(counts) and all(each in self.model.live() for each in ids):
            assert self.core.blocks_to_grow(ids, counts) == self.model.blocks_to_grow(ids, counts)
        return self.both(lambda: self.model.add_tokens(ids, counts, tokens, computed), on_core) is not None

    def rewind(self, request_id: int, count: int) -> None:
        self.both(
            lambda: self.model.rewind_kv_cache(request_id, count),
            lambda: self.core.rewind_kv_cache(request_id, count),
        )

    def store_context(self, request_id: int, tokens_computed: int) -> None:
        self.both(
            lambda: self.model.store_context_blocks(request_id, tokens_computed),
            lambda: self.core.store_context_blocks(request_id, tokens_computed),
        )

    def remove(
        self,
        request_id: int,
        *,
        store: bool = True,
        pin: bool = False,
        tokens: list[int] | None = None,
        computed: int | None = None,
    ) -> bool:
        asked = self.both(
            lambda: self.model.free_blocks_without([request_id]), lambda: self.core.free_blocks_without([request_id])
        )
        suspended = request_id in self.model.suspended()
        got = self.both(
            lambda: self.model.remove_sequence(request_id, store, pin, tokens, computed),
            lambda: self.core.remove_sequence(request_id, store=store, pin=pin, tokens=tokens, computed=computed),
        )
        if got is not None:
            assert sorted(got[1]) == sorted(self.names.id_of(block) for block in got[0])
            assert (asked is None) == suspended
            assert asked is None or (asked[0] == asked[1] and (pin or asked[1] == free_blocks(self.core)))
        return got is not None

    # ---------------------------------------------------------------------------------------------- pins

    def pin_sequence(self, request_id: int) -> None:
        if request_id in self.model.live():
            held = self.model.sequence(request_id).held_blocks()
            self.pin_ids(sorted({self.names.id_of(block) for block in held}))

    def pin_ids(self, ids: list[int]) -> None:
        blocks = [self.names.block(block_id) for block_id in ids]
        places = [self.model.state.window_of(block) for block in blocks]
        got = self.both(lambda: self.model.pin_blocks_by_id(blocks), lambda: self.core.pin_blocks_by_id(ids))
        if got is not None:
            assert [tier for _, tier in got[1]] == got[0]
            for block, window, (slot, _), tier in zip(blocks, places, got[1], got[0], strict=True):
                assert window is not None
                self.names.learn_slot(window, tier, block.slots[tier], slot)

    def unpin_ids(self, ids: list[int], tier: Tier | None) -> None:
        blocks = [self.names.block(block_id) for block_id in ids]
        self.both(
            lambda: self.model.unpin_blocks_by_id(blocks, tier),
            lambda: self.core.unpin_blocks_by_id(ids, tier=tier),
        )

    # ---------------------------------------------------------------------------------------------- transfers

    def take(self) -> None:
        expected_ticket, expected = self.model.take_transfers()
        batch = self.core.take_transfers()
        assert len(batch) == len(batch.items)
        assert [describe_item(item) for item in batch.items] == [describe_transfer(item) for item in expected]
        for item, transfer in zip(batch.items, expected, strict=True):
            self.names.learn_slot(transfer.window, transfer.tier_source, transfer.slot_source, item.slot_src)
            self.names.learn_slot(transfer.window, transfer.tier_target, transfer.slot_target, item.slot_dst)
            self.names.learn_block(transfer.target, item.block_id)
        self.tickets.append((expected_ticket, batch.ticket))

    def complete(self, index: int) -> None:
        ticket, core_ticket = self.tickets.pop(index)
        self.both(lambda: self.model.complete(ticket), lambda: self.core.complete(core_ticket))

    def fail(self, index: int) -> None:
        ticket, core_ticket = self.tickets.pop(index)
        got = self.both(lambda: self.model.fail(ticket), lambda: self.core.fail(core_ticket))
        assert got is not None and sorted(got[1]) == got[0]

    # ---------------------------------------------------------------------------------------------- the rest

    def advance_time(self, now_ms: int) -> None:
        self.both(lambda: self.model.advance_time(now_ms), lambda: self.core.advance_time(now_ms))

    def refresh(self) -> None:
        self.both(self.model.refresh_blocks, self.core.refresh_blocks)

    def reset_reuse_state(self) -> None:
        self.both(self.model.reset_reuse_state, self.core.reset_reuse_state)

    def read_events(self) -> None:
        dropped = self.core.get_kv_cache_stats().events_dropped
        self.mirror.follow(self.core.get_latest_events(), dropped)
        if self.events_max and not dropped:
            self.mirror.compare(self.model.state)


def compare_admissions(expected: list[Admission], actual: list[native.Admission]) -> None:
    fields = [field.name for field in dataclasses.fields(Admission)]
    assert [{name: getattr(each, name) for name in fields} for each in actual] == [vars(each) for each in expected]


def describe_item(item: native.TransferItem) -> tuple[object, ...]:
    return item.kind, item.window_size, item.tokens


def describe_transfer(item: Transfer) -> tuple[object, ...]:
    return item.kind, item.window.shape.size, item.tokens
