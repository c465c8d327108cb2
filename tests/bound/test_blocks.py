"""Each block gets the slot that it should: claims, tiers, priorities, copies, beams, windows, pins."""

from typing import Any

import pytest

from tests.bound import load
from tests.bound.making import WINDOW, add, finish_prompt, make_manager, make_request

kvfix_bound = load()


def test_only_a_batch_claims_before_it_allocates(era: Any) -> None:
    manager = make_manager(era, blocks=9)
    cached, filler = make_request(era, 1, range(9)), make_request(era, 2, range(200, 224))
    add(manager, cached, filler)
    finish_prompt(era, cached)
    manager.remove_sequence(1, cached, False)
    # The cached blocks are now the oldest: whoever allocates takes them first.
    filler.is_dummy_request = True
    manager.remove_sequence(2, filler, False)
    large, reusing = make_request(era, 3, range(100, 124)), make_request(era, 4, range(9))
    add(manager, large, reusing)
    assert reusing.prepopulated_prompt_len == (8 if hasattr(manager, "add_sequence_batch") else 0)
    assert manager.witness_free(WINDOW) == 0


def test_eviction_goes_through_the_host_tier_and_back(era: Any) -> None:
    manager = make_manager(era, blocks=3, host=4)
    first = make_request(era, 1, range(9))
    add(manager, first)
    finish_prompt(era, first)
    ids = list(manager.get_cache_block_ids(1, WINDOW)[0])
    manager.remove_sequence(1, first, False)
    other = make_request(era, 2, range(100, 109))
    add(manager, other)
    moved = manager.witness_take_transfers()
    assert [(kind, window, tokens) for kind, window, _, _, tokens in moved] == [
        ("offload", WINDOW, [8]),
        ("offload", WINDOW, [4, 5, 6, 7]),
        ("offload", WINDOW, [0, 1, 2, 3]),
    ]
    assert sorted(manager.witness_slots(2, WINDOW)[0]) == [0, 1, 2]
    other.is_dummy_request = True
    manager.remove_sequence(2, other, False)
    again = make_request(era, 3, range(9))
    add(manager, again)
    kinds = [(kind, tuple(tokens)) for kind, _, _, _, tokens in manager.witness_take_transfers()]
    # The other request was not stored, and its blocks have tokens nevertheless.
    assert kinds == [
        ("onboard", (0, 1, 2, 3)),
        ("offload", (104, 105, 106, 107)),
        ("onboard", (4, 5, 6, 7)),
        ("offload", (100, 101, 102, 103)),
    ]
    assert list(manager.get_cache_block_ids(3, WINDOW)[0])[:2] == ids[:2]
    assert again.prepopulated_prompt_len == 8


def test_blocks_that_were_never_stored_go_to_the_host_tier_too(era: Any) -> None:
    """They push out what somebody might ask for again."""
    manager = make_manager(era, blocks=3, host=2)
    cached = make_request(era, 1, range(9))
    add(manager, cached)
    finish_prompt(era, cached)
    manager.remove_sequence(1, cached, False)
    for number in (2, 3):
        cancelled = make_request(era, number, range(100 * number, 100 * number + 9))
        add(manager, cancelled)
        cancelled.is_dummy_request = True
        manager.remove_sequence(number, cancelled, False)
    offloaded = [tokens[0] for kind, _, _, _, tokens in manager.witness_take_transfers() if kind == "offload"]
    assert {200, 204} <= set(offloaded)
    again = make_request(era, 4, range(9))
    add(manager, again)
    assert again.prepopulated_prompt_len == 0


@pytest.mark.parametrize("switch", ["enable_partial_reuse", "copy_on_partial_reuse"])
def test_an_incomplete_block_that_matches_exactly_is_reused_whatever_the_switches_say(era: Any, switch: str) -> None:
    manager = make_manager(era, **{switch: False})
    first = make_request(era, 1, range(7))
    add(manager, first)
    finish_prompt(era, first)
    manager.store_blocks_for_reuse(1, first, False)
    again = make_request(era, 2, range(8))
    add(manager, again)
    assert again.prepopulated_prompt_len == 7


def test_a_copied_block_has_the_priority_of_its_source(era: Any) -> None:
    manager = make_manager(era, blocks=4)
    first = make_request(era, 1, range(9))
    add(manager, first)
    finish_prompt(era, first)
    manager.store_context_blocks(first)
    high = era.KvCacheRetentionConfig([era.TokenRangeRetentionConfig(0, None, 80)])
    second = make_request(era, 2, [0, 1, 60], kv_cache_retention_config=high)
    add(manager, second)
    (copied,) = manager.get_cache_block_ids(2, WINDOW)[0]
    assert second.prepopulated_prompt_len == 2
    if era is not kvfix_bound.A:
        assert manager.get_priority_by_block_id(copied, WINDOW) == 35


def test_pinning_what_another_request_has_stored_leaves_it_to_be_evicted() -> None:
    """The request holds twins of its own, and the pin goes to the blocks that are found in the tree."""
    era = kvfix_bound.B2
    manager = make_manager(era, blocks=6)
    first, twin = make_request(era, 1, range(9)), make_request(era, 2, range(9))
    add(manager, first)
    add(manager, twin)
    for request in (first, twin):
        finish_prompt(era, request)
    manager.remove_sequence(1, first, False)
    free = manager.witness_free(WINDOW)
    pinned = manager.store_blocks_for_reuse(2, twin, True)
    assert manager.witness_free(WINDOW) == free, "they stay in the queue"
    assert not set(pinned) & set(manager.get_cache_block_ids(2, WINDOW)[0])
    taking = make_request(era, 3, range(100, 109))
    add(manager, taking)
    assert set(pinned) <= set(manager.get_cache_block_ids(3, WINDOW)[0])


def test_low_priorities_go_first(era: Any) -> None:
    manager = make_manager(era, blocks=4)
    low = era.KvCacheRetentionConfig([era.TokenRangeRetentionConfig(0, None, 5)])
    kept, weak = make_request(era, 1, range(5)), make_request(era, 2, range(50, 55), kv_cache_retention_config=low)
    add(manager, weak)
    add(manager, kept)
    for request in (kept, weak):
        finish_prompt(era, request)
        manager.remove_sequence(request.request_id, request, False)
    add(manager, make_request(era, 3, range(90, 97)))
    assert [tokens[:4] for tokens, _ in manager.witness_cached()] == [(0, 1, 2, 3)]


def test_a_block_that_is_written_to_is_copied_first(era: Any) -> None:
    manager = make_manager(era)
    first = make_request(era, 1, range(9))
    add(manager, first)
    finish_prompt(era, first)
    manager.store_context_blocks(first)
    second = make_request(era, 2, [0, 1, 2, 3, 4, 5, 60, 61])
    add(manager, second)
    assert second.prepopulated_prompt_len == 6
    (transfer,) = manager.witness_take_transfers()
    sources, targets = manager.witness_slots(1, WINDOW)[0], manager.witness_slots(2, WINDOW)[0]
    assert transfer == ("copy", WINDOW, sources[1], targets[1], [4, 5])


def test_beams_share_all_but_the_last_block_and_are_not_stored(era: Any) -> None:
    manager = make_manager(era, max_beam_width=2)
    request = make_request(era, 1, range(9), sampling_config=era.SamplingConfig(2))
    add(manager, request, beams=2)
    one, other = manager.witness_slots(1, WINDOW)
    assert one[:2] == other[:2] and one[2] != other[2]
    manager.remove_sequence(1, request, False)
    assert manager.witness_cached() == [] and manager.witness_free(WINDOW) == 16


def test_blocks_leave_a_sliding_window(era: Any) -> None:
    manager = make_manager(era, blocks_per_window={8: (16, 0)}, max_attention_window_vec=[8])
    request = make_request(era, 1, range(8))
    add(manager, request)
    finish_prompt(era, request)
    for _ in range(4):
        manager.add_token(1)
    assert manager.witness_free(8) == 14
    manager.remove_sequence(1, request, False)
    assert manager.witness_free(8) == 16


def test_rewinding_gives_emptied_blocks_back(era: Any) -> None:
    manager = make_manager(era)
    add(manager, make_request(era, 1, range(8)))
    manager.add_token(1)
    assert manager.witness_free(WINDOW) == 13
    manager.rewind_kv_cache(1, 1)
    assert manager.witness_free(WINDOW) == 14


def test_a_chain_of_pins_is_undone_by_its_last_id() -> None:
    era = kvfix_bound.S
    manager = make_manager(era)
    request = make_request(era, 1, range(13))
    add(manager, request)
    finish_prompt(era, request)
    last = manager.store_blocks_for_reuse(1, request, True)
    manager.remove_sequence(1, request, False)
    assert manager.witness_free(WINDOW) == 16 - 4
    manager.unpin_blocks_by_id(last)
    assert manager.witness_free(WINDOW) == 16


def test_exactly_the_listed_blocks_are_unpinned() -> None:
    era = kvfix_bound.C
    manager = make_manager(era)
    request = make_request(era, 1, range(13))
    add(manager, request)
    finish_prompt(era, request)
    pinned = manager.store_blocks_for_reuse(1, request, True)
    manager.remove_sequence(1, request, False)
    manager.unpin_blocks_by_id(pinned[-1:])
    assert manager.witness_free(WINDOW) == 16 - len(pinned) + 1
