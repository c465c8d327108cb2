"""The tier index against its model, call by call; and that a call costs what is new."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trtllm_kvfix.native import TierIndex, UnknownRequest

from . import strategies as draws
from .model.tier_index import ModelTierIndex, TierBlock
from .model.values import Extras, Salt, Tokens
from .model.values import UnknownRequest as UnknownInModel
from .native_values import carried

numbers = st.integers(0, 30)
NOBODY = 10_000


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except (UnknownRequest, UnknownInModel):
        return None, "unknown"
    except ValueError:
        return None, "refused"


class TierIndexMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.sampled_from([1, 2, 4, 7, 12]),
        tokens_per_block=st.sampled_from([1, 2, 3]),
        hash_bits=st.sampled_from([64, 64, 3, 1]),
        admission=st.sampled_from(["all", "adaptive"]),
    )
    def start(self, slots: int, tokens_per_block: int, hash_bits: int, admission: str) -> None:
        self.size = tokens_per_block
        bits = hash_bits if admission == "all" else 64  # the policy knows blocks by their hash alone
        self.core = TierIndex(slots, tokens_per_block, hash_bits=bits, admission=admission)
        self.model = ModelTierIndex(slots, tokens_per_block, admission)
        self.numbers: dict[int, int] = {}  # open sequences: the model's number -> the core's
        self.slots: dict[int, TierBlock] = {}  # what the model has, by the core's slot
        self.claims: list[list[int]] = []
        self.pins: list[list[int]] = []
        self.open(None, None, ())
        self.extend(0, (0,) * 9, "list")

    def pick(self, index: int) -> tuple[int, int]:
        """An open sequence, as the model and as the core know it; rarely one that is not."""
        known = [*self.numbers.items()]
        return known[index % len(known)] if known and index < 30 else (NOBODY, NOBODY)

    def both(self, on_model: Callable[[], Any], on_core: Callable[[], Any]) -> tuple[Any, Any] | None:
        """The answer of both, or None if both refused for the same reason."""
        expected, why = outcome(on_model)
        found, why_found = outcome(on_core)
        assert why_found == why
        return None if why else (expected, found)

    def blocks_of(self, slots: list[int]) -> list[TierBlock]:
        return [self.slots[slot] for slot in slots]

    # ------------------------------------------------------------------------------------------ sequences

    @rule(lora_id=st.sampled_from([None, None, 3]), salt=draws.salts, extra_keys=draws.spans(8))
    def open(self, lora_id: int | None, salt: Salt, extra_keys: Extras) -> None:
        number = self.model.open((lora_id, type(salt).__name__, salt), extra_keys)
        self.numbers[number] = self.core.open(lora_id=lora_id, salt=salt, extra_keys=extra_keys)

    @rule()
    def open_plain(self) -> None:
        self.open(None, None, ())

    @rule(index=numbers, tokens=draws.prompts(), carrier=draws.carriers)
    def extend(self, index: int, tokens: Tokens, carrier: str) -> None:
        model, core = self.pick(index)
        whole = tokens if index == 29 else tokens[: len(tokens) // self.size * self.size]
        self.both(lambda: self.model.extend(model, whole), lambda: self.core.extend(core, carried(whole, carrier)))

    @rule(index=numbers)
    def close(self, index: int) -> None:
        model, core = self.pick(index)
        if self.both(lambda: self.model.close(model), lambda: self.core.close(core)):
            del self.numbers[model]

    @rule(index=numbers)
    def held(self, index: int) -> None:
        model, core = self.pick(index)
        got = self.both(lambda: self.model.held(model), lambda: self.core.held(core))
        assert got is None or got[0] == got[1]

    # ------------------------------------------------------------------------------------------ filling

    @rule(
        index=numbers,
        end=st.integers(0, 12),
        known=st.sampled_from([0, 0, 0, 1, 2, 5]),
        priorities=st.lists(draws.priorities | st.just(101), max_size=3),
    )
    def claim(self, index: int, end: int, known: int, priorities: list[int]) -> None:
        model, core = self.pick(index)
        got = self.both(
            lambda: self.model.claim(model, end, known, tuple(priorities)),
            lambda: self.core.claim(core, end, known=known, priorities=priorities),
        )
        if got is None:
            return
        expected, found = got
        assert (expected is None) == (found is None), "somebody fills a block of it"
        if expected is None:
            return
        first, blocks = expected
        assert (found.first, len(found.slots)) == (first, len(blocks))
        alive = {id(one) for one in self.model.blocks}
        self.slots = {slot: one for slot, one in self.slots.items() if id(one) in alive}
        assert not self.slots.keys() & set(found.slots), "a slot that is in use is given away"
        self.slots.update(zip(found.slots, blocks, strict=True))
        if blocks:
            self.claims.append(found.slots)

    @precondition(lambda self: self.claims)
    @rule(index=numbers, arrived=st.booleans())
    def end_claim(self, index: int, arrived: bool) -> None:
        slots = self.claims.pop(index % len(self.claims))
        (self.model.commit if arrived else self.model.abandon)(self.blocks_of(slots))
        (self.core.commit if arrived else self.core.abandon)(slots)

    @precondition(lambda self: self.claims)
    @rule(index=numbers, kept=numbers)
    def abandon_the_end_of_a_claim(self, index: int, kept: int) -> None:
        slots = self.claims.pop(index % len(self.claims))
        kept %= len(slots)
        self.model.abandon(self.blocks_of(slots[kept:]))
        self.core.abandon(slots[kept:])
        if kept:
            self.claims.append(slots[:kept])

    @precondition(lambda self: self.claims)
    @rule(index=numbers, kept=numbers)
    def set_aside_the_end_of_a_claim(self, index: int, kept: int) -> None:
        slots = self.claims.pop(index % len(self.claims))
        kept %= len(slots)
        self.model.set_aside(self.blocks_of(slots[kept:]))
        self.core.set_aside(slots[kept:])
        self.claims += [part for part in (slots[:kept], slots[kept:]) if part]

    @precondition(lambda self: self.claims)
    @rule(index=numbers, arrived=st.booleans())
    def end_another_part_of_a_claim(self, index: int, arrived: bool) -> None:
        """Refused, but where all was dropped: then there is nothing that hangs together."""
        slots = self.claims[index % len(self.claims)]
        call = self.core.commit if arrived else self.core.abandon
        wrong = [[*slots, *slots], [self.model.slots]]
        if len(slots) > 1 and self.slots[slots[0]].findable:
            wrong += [slots[:-1], slots[::-1], *([slots[1:]] if arrived else [])]
        for each in wrong:
            with pytest.raises(ValueError, match="all slots of one claim"):
                call(each)

    # ------------------------------------------------------------------------------------------ reading

    @rule(index=numbers, first=st.integers(0, 4), blocks=st.integers(0, 12))
    def pin(self, index: int, first: int, blocks: int) -> None:
        model, core = self.pick(index)
        end = first + blocks
        got = self.both(lambda: self.model.pin(model, first, end), lambda: self.core.pin(core, first, end))
        if got is not None:
            expected, found = got
            assert [id(one) for one in self.blocks_of(found)] == [id(one) for one in expected]
            self.pins.append(found)

    @precondition(lambda self: self.pins)
    @rule(index=numbers, bad=st.integers(0, 5))
    def unpin(self, index: int, bad: int) -> None:
        slots = self.pins.pop(index % len(self.pins))
        self.model.condemn(self.blocks_of(slots[bad : bad + 1]))
        self.core.condemn(slots[bad : bad + 1])
        self.model.unpin(self.blocks_of(slots))
        self.core.unpin(slots)

    @rule(slot=st.integers(0, 13))
    def unpin_or_condemn_what_is_not_pinned(self, slot: int) -> None:
        pins = sum(each.count(slot) for each in self.pins)
        with pytest.raises(ValueError, match="unpinned"):
            self.core.unpin([slot] * (pins + 1))
        if not pins:
            with pytest.raises(ValueError, match="not pinned"):
                self.core.condemn([slot])

    @rule()
    def drop(self) -> None:
        self.model.drop()
        self.core.drop()

    # ------------------------------------------------------------------------------------------ what holds

    @invariant()
    def the_numbers_agree(self) -> None:
        if hasattr(self, "core"):
            stats, model = self.core.stats(), self.model
            found = stats.slots, stats.free, stats.owned, stats.evicted, stats.sequences
            free = model.slots - len(model.blocks)
            assert found == (model.slots, free, model.owned, model.evicted, len(model.sequences))
            self.core.check_invariants()


TestTierIndexMachine = TierIndexMachine.TestCase


def filled(index: TierIndex, tokens: list[int]) -> int:
    """An open sequence whose blocks are all there."""
    number = index.open()
    index.extend(number, tokens)
    claim = index.claim(number, len(tokens) // index.tokens_per_block)
    assert claim is not None
    index.commit(claim.slots)
    return number


def test_what_was_pushed_out_is_not_stored_again_by_the_same_sequence() -> None:
    """Two that do not fit together would store each other out of the tier with every block."""
    index = TierIndex(4, 2)
    mine = filled(index, [1, 1, 2, 2, 3, 3])
    index.claim(filled(index, [7, 7]), 1)
    filled(index, [8, 8, 9, 9])
    assert index.held(mine) < 3
    index.extend(mine, [4, 4])
    claim = index.claim(mine, 4)
    assert claim is not None
    assert claim.slots == []
    again = index.open()  # another, or the same that comes back: it was wanted again
    index.extend(again, [1, 1, 2, 2, 3, 3])
    claim = index.claim(again, 3)
    assert claim is not None
    assert claim.slots


def test_what_is_elsewhere_takes_free_slots_alone() -> None:
    index = TierIndex(4, 1)
    filled(index, [1, 2])

    def claimed(tokens: list[int], known: int) -> int:
        number = index.open()
        index.extend(number, tokens)
        claim = index.claim(number, len(tokens), known=known)
        assert claim is not None
        index.commit(claim.slots)
        return len(claim.slots)

    assert claimed([5, 6, 7, 8], 3) == 0, "three are known, and two slots are free"
    assert claimed([5, 6, 7, 8], 2) == 4, "what follows them makes room as usual"
    assert claimed([3, 4], 1) == 0


def test_a_block_behind_a_long_prefix_goes_before_what_it_follows() -> None:
    index = TierIndex(5, 1)
    long = filled(index, [1, 2, 3, 4])
    filled(index, [9])
    filled(index, [8])
    assert index.held(long) == 3, "the oldest is its first block, and its last one went"


def test_slots_of_a_numpy_array_are_taken() -> None:
    index = TierIndex(2, 1)
    number = index.open()
    index.extend(number, np.array([1, 2], np.int64))
    claim = index.claim(number, 2, priorities=np.array([10, 20], np.int32))
    assert claim is not None
    index.commit(np.array(claim.slots, np.uint32))
    assert index.held(number) == 2


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("slots", lambda: TierIndex(0, 1)),
        ("slots", lambda: TierIndex(1 << 31, 1)),
        ("tokens_per_block", lambda: TierIndex(1, 0)),
        ("hash_bits", lambda: TierIndex(1, 1, hash_bits=65)),
        ("admission", lambda: TierIndex(1, 1, admission="some")),
    ],
)
def test_an_index_that_makes_no_sense_is_refused_by_name(name: str, make: Callable[[], TierIndex]) -> None:
    with pytest.raises(ValueError, match=name):
        make()
