"""Blocks are stored for reuse as far as they are computed, and questions about reuse are answered right."""

from typing import Any

from tests.bound import load
from tests.bound.making import (
    TOKENS_PER_BLOCK,
    WHOLE_PROMPT,
    WINDOW,
    add,
    finish_prompt,
    make_manager,
    make_request,
    name_of,
    unique,
)

kvfix_bound = load()


def after_one_chunk(era: Any, manager: Any) -> Any:
    """A request of 13 tokens of which the first 4 are computed."""
    request = make_request(era, 1, range(13))
    add(manager, request)
    request.context_chunk_size = 4
    request.move_to_next_context_chunk()
    return request


def test_store_context_blocks_after_the_first_chunk(era: Any) -> None:
    manager = make_manager(era)
    manager.store_context_blocks(after_one_chunk(era, manager))
    stored = 12 if name_of(era) in WHOLE_PROMPT else 4
    assert manager.witness_cached() == [(tuple(range(stored)), 4)]


def test_store_context_blocks_stores_only_what_is_computed_with_the_repair(era: Any) -> None:
    era.set_computed_only(True)
    manager = make_manager(era)
    manager.store_context_blocks(after_one_chunk(era, manager))
    assert manager.witness_cached() == [((0, 1, 2, 3), 4)]


def test_a_release_in_the_middle_of_the_prompt_stores_all_of_it(era: Any) -> None:
    manager = make_manager(era)
    manager.remove_sequence(1, after_one_chunk(era, manager), False)
    assert manager.witness_cached() == [(tuple(range(12)), 4)]
    victim = make_request(era, 2, range(13))
    add(manager, victim)
    assert victim.context_current_position == 12


def test_the_repair_cuts_a_release_at_the_position(era: Any) -> None:
    kvfix_bound.set_computed_only(True)
    manager = make_manager(era)
    manager.remove_sequence(1, after_one_chunk(era, manager), False)
    assert manager.witness_cached() == [((0, 1, 2, 3), 4)]


def test_a_dummy_at_the_time_of_the_release_is_not_stored(era: Any) -> None:
    manager = make_manager(era)
    request = after_one_chunk(era, manager)
    request.is_dummy_request = True
    manager.remove_sequence(1, request, False)
    assert manager.witness_cached() == []
    assert manager.witness_free(WINDOW) == 16


def test_all_tokens_but_the_last_are_stored_when_a_request_ends(era: Any) -> None:
    manager = make_manager(era)
    request = make_request(era, 1, range(6))
    add(manager, request)
    finish_prompt(era, request, token=70)
    manager.add_token(1)
    manager.remove_sequence(1, request, False)
    assert manager.witness_cached() == [((0, 1, 2, 3, 4, 5), 6)]


def test_find_new_context_block_answers_with_all_blocks_up_to_the_first_missing_one() -> None:
    for era in (kvfix_bound.S, kvfix_bound.B2):
        manager = make_manager(era)
        request = make_request(era, 1, range(9), lora_task_id=3, cache_salt_id=5)
        add(manager, request)
        finish_prompt(era, request)
        manager.store_context_blocks(request)
        asker = make_request(era, 2, range(16), lora_task_id=3, cache_salt_id=5)
        key = manager.find_new_context_block(unique(era, range(16)), asker)
        assert [token.token_id for token in key.unique_tokens] == list(range(12))
        assert len(key.unique_tokens) - TOKENS_PER_BLOCK == 8
        assert key.lora_task_id == 3
        assert manager.find_new_context_block(unique(era, range(8)), asker) is None
        stranger = make_request(era, 3, range(16), lora_task_id=4, cache_salt_id=5)
        assert len(manager.find_new_context_block(unique(era, range(16)), stranger).unique_tokens) == TOKENS_PER_BLOCK


def test_counting_tells_blocks_in_use_from_cached_ones() -> None:
    era = kvfix_bound.B2
    manager = make_manager(era)
    request = make_request(era, 1, range(9))
    add(manager, request)
    finish_prompt(era, request)
    manager.store_context_blocks(request)
    tokens = request.get_unique_tokens(0)
    assert manager.count_reusable_blocks(tokens, request) == 2
    manager.remove_sequence(1, request, False)
    assert manager.count_reusable_blocks(tokens, request) == 0
    assert manager.count_reusable_blocks(tokens, request, only_allocated=False) == 2


def test_late_eras_summarise_a_prefix_and_leave_an_estimate() -> None:
    era = kvfix_bound.C
    manager = make_manager(era)
    request = make_request(era, 1, range(9))
    add(manager, request)
    finish_prompt(era, request)
    manager.store_context_blocks(request)
    asker = make_request(era, 2, range(14))
    summary = manager.analyze_prefix_reuse(asker.get_unique_tokens(0), asker)
    assert (summary.reusable_blocks_all, summary.reusable_blocks_allocated) == (2, 2)
    assert [token.token_id for token in summary.first_new_block.unique_tokens] == [8, 9, 10, 11]
    assert manager.get_needed_blocks_one_step(asker, False, WINDOW) == 2
    assert asker.estimated_reusable_tokens == 8
