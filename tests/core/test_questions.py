"""Answers to a scheduler say what then happens, and asking changes nothing."""

import pytest

from trtllm_kvfix.native import OutOfBlocks, Retention, SequenceRequest

from .scenes import BLOCK, begin, blocks_of, leave_behind, manager, prompt, push_to_host, run_transfers


def free(m: object) -> list[int]:
    windows = m.get_kv_cache_stats().windows  # type: ignore[attr-defined]
    return [window.primary.free + window.primary.cached for window in windows]


def test_a_request_is_admitted_exactly_where_it_needs_no_more_than_there_is() -> None:
    for length in range(1, 8 * BLOCK):
        m = manager(primary=6)
        leave_behind(m, 1, prompt(1, 2 * BLOCK))
        begin(m, 2, prompt(2, BLOCK))
        request = SequenceRequest(3, prompt(1, length))
        [needed] = m.blocks_to_admit(request)
        [before] = free(m)
        if needed > before:
            with pytest.raises(OutOfBlocks):
                m.add_sequence(request)
        else:
            m.add_sequence(request)
            assert free(m) == [before - needed]


def test_reuse_is_charged_where_it_keeps_a_block_from_eviction_and_not_where_somebody_owns_it() -> None:
    m = manager(primary=8)
    tokens = prompt(1, 3 * BLOCK)
    begin(m, 1, tokens)
    assert m.blocks_to_admit(SequenceRequest(2, [*tokens, 7])) == [1]
    m.remove_sequence(1)
    assert m.blocks_to_admit(SequenceRequest(2, [*tokens, 7])) == [4]


def test_blocks_in_host_need_a_slot_in_primary() -> None:
    m = manager(primary=4, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    push_to_host(m, 2, 4)
    assert m.blocks_to_admit(SequenceRequest(3, [*prompt(1, 2 * BLOCK), 7])) == [3]


def test_to_completion_each_beam_grows_into_blocks_of_its_own() -> None:
    m = manager(primary=32, max_beam_width=3)
    request = SequenceRequest(1, prompt(1, BLOCK + 1), beam_width=3)
    assert m.blocks_to_admit(request) == [1 + 3]
    assert m.blocks_to_admit(request, tokens_new_max=2 * BLOCK) == [1 + 3 + 2 * 3]
    m.add_sequence(request)
    assert m.blocks_to_grow([1], [BLOCK - 1]) == 0
    assert m.blocks_to_grow([1], [BLOCK]) == 3
    before = free(m)
    m.add_token(1, 2 * BLOCK)
    assert [before[0] - 6] == free(m)
    assert m.get_token_count(1) == 3 * BLOCK + 1


def test_what_would_be_free_without_sequences_that_share_their_prompt() -> None:
    m = manager(primary=16)
    begin(m, 1, prompt(1, 4 * BLOCK))
    begin(m, 2, [*prompt(1, 4 * BLOCK), 7])
    digest = m.digest()
    assert free(m) == [11]
    assert m.free_blocks_without([]) == [11]
    assert m.free_blocks_without([1]) == [11], "the other one keeps the shared blocks"
    assert m.free_blocks_without([2]) == [12]
    assert m.free_blocks_without([1, 2]) == m.free_blocks_without([2, 1]) == [16]
    assert m.digest() == digest
    pinned = blocks_of(m, 2)
    m.pin_blocks_by_id(pinned)
    assert m.free_blocks_without([1, 2]) == [11]
    m.unpin_blocks_by_id(pinned)


def test_a_block_whose_copy_has_not_come_is_not_free_without_its_owner() -> None:
    m = manager(primary=4, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    push_to_host(m, 2, 4)
    m.add_sequence(SequenceRequest(3, [*prompt(1, 2 * BLOCK), 7]))
    assert m.free_blocks_without([3]) == [2]
    run_transfers(m)
    assert m.free_blocks_without([3]) == [4]


def test_blocks_that_have_left_a_window_are_counted_for_it_alone() -> None:
    m = manager(primary=16, window_sizes=[BLOCK, 3 * BLOCK])
    begin(m, 1, prompt(1, 5 * BLOCK))
    assert m.get_num_front_blocks_removed(1, BLOCK) == 4
    assert m.get_num_front_blocks_removed(1, 3 * BLOCK) == 2
    assert m.get_token_count(1) == 5 * BLOCK


def test_a_priority_is_that_of_its_range_until_its_duration_ends() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2 * BLOCK), retention=Retention(ranges=[(0, BLOCK, 80, 1000)]))
    [[first, second]] = m.get_cache_block_ids(1)
    assert (m.get_priority_by_block_id(first), m.get_priority_by_block_id(second)) == (80, 35)
    m.remove_sequence(1)
    m.advance_time(1000)
    assert m.get_priority_by_block_id(first) == 35
