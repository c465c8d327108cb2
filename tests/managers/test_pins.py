"""Blocks that upstream pins by number: they keep their slot and their bytes, whatever runs meanwhile."""

from typing import Any

import pytest

from tests.managers.making import Bench, bench


def slots_of(b: Bench, request_id: int) -> list[int]:
    (found,) = b.impl.get_cache_block_ids(request_id, 64)
    return list(found)


class RefusingCore:
    def unpin_blocks_by_id(self, _blocks: list[int], *, tier: str) -> None:
        raise RuntimeError(f"{tier}: refused")


def ended_with_pin(b: Bench, era: str) -> Any:
    """A prompt of three blocks that was computed, whose request has ended."""
    request = b.request(1, range(10))
    b.prepare([request])
    b.computed(request)
    pinned = b.impl.store_blocks_for_reuse(1, request, True)
    slots = slots_of(b, 1)
    assert pinned == (slots if era == "D" else slots[-1])
    b.impl.remove_sequence(1, request, False)
    return pinned


@pytest.mark.parametrize("era", ["S", "D"])
def test_pinned_blocks_outlive_their_request_and_come_free_when_they_are_let_go(era: str) -> None:
    with bench(era, blocks=8) as b:
        pinned = ended_with_pin(b, era)
        assert b.cached(range(10)) == 9, "stored although no report had come"
        assert b.impl.get_kv_cache_stats().free_num_blocks == 5
        b.prepare([b.request(2, range(100, 120))])
        assert b.cached(range(10)) == 9, "nobody has evicted what is pinned"
        b.impl.unpin_blocks_by_id(pinned)
        assert b.impl.get_kv_cache_stats().free_num_blocks == 3
        with pytest.raises(ValueError, match="unpinned before"):
            b.impl.unpin_blocks_by_id(pinned)


@pytest.mark.parametrize("era", ["S", "D"])
def test_blocks_that_two_have_pinned_need_both_to_let_go(era: str) -> None:
    with bench(era, blocks=8) as b:
        first = ended_with_pin(b, era)
        again = b.request(2, range(10))
        b.prepare([again])
        b.computed(again)
        slots = slots_of(b, 2)
        second = b.impl.remove_sequence(2, again, True)
        assert second == slots[-1], "every era names with one number what a release pins"
        b.impl.unpin_blocks_by_id(first)
        assert b.impl.get_kv_cache_stats().free_num_blocks < 8
        b.impl.unpin_blocks_by_id(second)
        assert b.impl.get_kv_cache_stats().free_num_blocks == 8


def test_what_is_not_pinned_can_be_stored_early() -> None:
    with bench("D") as b:
        request = b.request(1, range(10))
        request.context_chunk_size = 8
        b.prepare([request])
        request.move_to_next_context_chunk()
        assert b.impl.store_blocks_for_reuse(1, request, False) == []
        assert b.cached(range(10)) == 0, "its chunk has not been reported"
        b.impl.store_context_blocks(request)
        assert b.impl.store_blocks_for_reuse(1, request, False) == []
        assert b.cached(range(10)) == 8


def test_pins_wait_for_blocks_that_are_being_brought() -> None:
    with bench("D", blocks=4, host=8) as b:
        b.served(1, range(16))
        b.served(2, range(100, 116))
        back = b.request(3, range(16))
        b.impl.sync_transfer_manager_with_buffer_manager()
        b.impl.add_sequence(3, 16, 1, back)
        assert b.impl.core.get_kv_cache_stats().windows[0].primary.owned == 0, "it has only been noted"
        pinned = b.impl.store_blocks_for_reuse(3, back, True)
        assert pinned == slots_of(b, 3)
        assert isinstance(pinned, list)
        b.impl.unpin_blocks_by_id(pinned[1:])
        b.impl.unpin_blocks_by_id(pinned[:1])
        b.impl.pin_blocks(3)
        b.impl.unpin_blocks_by_id(pinned)
        b.impl.remove_sequence(3, back, False)


def test_a_request_that_was_never_added_pins_nothing() -> None:
    with bench("D") as b:
        assert b.impl.remove_sequence(5, None, True) is None
    with bench("S") as b:
        assert b.impl.remove_sequence(5, None, True) is None


def test_the_last_block_is_named_by_its_slot() -> None:
    with bench() as b:
        b.prepare([b.request(1, range(10))])
        assert b.impl.get_last_block_id(1) == slots_of(b, 1)[-1]


def test_a_chain_that_the_core_refuses_to_unpin_stays_pinned_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench("S", blocks=8) as b:
        pinned = ended_with_pin(b, "S")
        with monkeypatch.context() as patched:
            patched.setattr(b.impl._books.pins, "_core", RefusingCore())
            with pytest.raises(RuntimeError, match="refused"):
                b.impl.unpin_blocks_by_id(pinned)
        b.impl.unpin_blocks_by_id(pinned)
        assert b.impl.get_kv_cache_stats().free_num_blocks == 8
