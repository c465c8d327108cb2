"""The arithmetic of chunks and positions, and the quirks of the setters."""

from typing import Any

import pytest

from tests.bound import load
from tests.bound.making import add, finish_prompt, make_manager, make_request

kvfix_bound = load()


@pytest.mark.parametrize(("chunk", "after"), [(4, 4), (6, 4), (8, 8), (9, 9), (13, 9)])
def test_chunks_end_on_a_block_boundary_behind_what_was_reused(era: Any, chunk: int, after: int) -> None:
    manager = make_manager(era)
    first = make_request(era, 1, range(5))
    add(manager, first)
    finish_prompt(era, first)
    manager.remove_sequence(1, first, False)
    request = make_request(era, 2, [0, 1, 2, 3, *range(50, 59)])
    request.context_chunk_size = chunk
    add(manager, request)
    assert request.context_current_position == request.prepopulated_prompt_len == 4
    assert request.context_chunk_size == after
    assert request.is_first_context_chunk


def test_chunk_setters_clamp_and_refuse(era: Any) -> None:
    request = make_request(era, 1, range(10))
    assert request.context_chunk_size == 10
    request.context_chunk_size = 99
    assert request.context_chunk_size == 10
    with pytest.raises(RuntimeError):
        request.context_chunk_size = -1
    request.context_chunk_size = 4
    request.move_to_next_context_chunk()
    assert (request.context_current_position, request.context_chunk_size) == (4, 0)
    assert not request.is_last_context_chunk
    request.state = era.LlmRequestState.GENERATION_IN_PROGRESS
    with pytest.raises(RuntimeError):
        _ = request.context_chunk_size


def test_pause_turns_what_was_generated_into_prompt(era: Any) -> None:
    request = make_request(era, 1, range(6))
    finish_prompt(era, request, token=70)
    request.seq_slot = 3
    request.pause(max_input_len=100)
    assert request.prompt_len == 7 and request.orig_prompt_len == 6 and request.max_new_tokens == 7
    assert request.context_current_position == 0 and request.context_chunk_size == 7
    assert request.state == era.LlmRequestState.CONTEXT_INIT and request.seq_slot is None


def test_draft_tokens_keep_their_quirk(era: Any) -> None:
    request = make_request(era, 1, range(6))
    assert request.draft_tokens is None
    request.draft_tokens = [1, 2]
    request.draft_tokens = None
    assert request.draft_tokens == [1, 2] and request.num_draft_tokens == 2
    request.draft_tokens = []
    assert request.draft_tokens is None


def test_lists_of_images_are_fresh_at_each_read(era: Any) -> None:
    request = make_request(
        era, 1, range(6), multimodal_hashes=[[1] * 8], multimodal_positions=[0], multimodal_lengths=[2]
    )
    request.multimodal_positions.append(5)
    assert request.multimodal_positions == [0]
    assert make_request(era, 2, range(6)).multimodal_hashes is None


def test_a_child_is_a_copy_with_an_id_of_its_own(era: Any) -> None:
    parent = make_request(era, 1, range(6), lora_task_id=4)
    child = parent.create_child_request(2)
    assert (child.request_id, child.parent_request_id, child.is_child) == (2, 1, True)
    assert child.get_tokens(0) == parent.get_tokens(0) and child.lora_task_id == 4
    assert not parent.is_child
