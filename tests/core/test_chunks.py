"""Prompts that are admitted chunk by chunk: a window serves any length, and no chunk waits for room."""

import pytest

from trtllm_kvfix.native import BlockManager, OutOfBlocks, SequenceRequest

from .scenes import BLOCK, begin, blocks_of, leave_behind, manager, prompt, reusable, run_transfers

WINDOW = 8


def there(m: BlockManager) -> list[int]:
    """Counts the blocks that anybody may have: free or cached, and kept for nobody."""
    return m.free_blocks_without([])


def prefill(m: BlockManager, request_id: int, length: int, reserved: int, chunk: int) -> None:
    """The rest of a prompt, each chunk reserved when the one before has been computed."""
    while reserved < length:
        count = min(chunk, length - reserved)
        m.add_token(request_id, count, computed=reserved)
        reserved += count
    m.store_context_blocks(request_id, length)


def serve(m: BlockManager, request_id: int, tokens: list[int], chunk: int) -> int:
    """Admitted, computed and gone. Returns how much was reused."""
    admission = m.add_sequence(SequenceRequest(request_id, tokens), chunk_tokens=chunk)
    run_transfers(m)
    reserved = m.get_token_count(request_id)
    assert reserved == min(len(tokens), admission.tokens_reused + chunk)
    prefill(m, request_id, len(tokens), reserved, chunk)
    m.remove_sequence(request_id, computed=len(tokens))
    return admission.tokens_reused


@pytest.mark.parametrize(("length", "chunk"), [(400, 1), (400, 7), (400, 32), (400, 53), (100_000, 32)])
def test_a_window_of_8_with_16_blocks_serves_a_prompt_of_any_length(length: int, chunk: int) -> None:
    m = manager(primary=16, window_sizes=[WINDOW])
    with pytest.raises(OutOfBlocks):
        m.add_sequence(SequenceRequest(1, prompt(1, length)))
    serve(m, 1, prompt(1, length), chunk)
    m.check_invariants()
    assert there(m) == [16]


def test_admission_keeps_a_window_and_a_chunk_and_no_more() -> None:
    m = manager(primary=16, window_sizes=[WINDOW])
    request = SequenceRequest(1, prompt(1, 400))
    # 8 + 16 positions touch at most seven blocks of four tokens.
    assert m.blocks_to_admit(request, chunk_tokens=16) == [7]
    assert m.blocks_to_admit(request, tokens_new_max=1000, chunk_tokens=16) == [7]
    assert m.blocks_to_admit(request) == [100]
    m.add_sequence(request, chunk_tokens=16)
    [window] = m.get_kv_cache_stats().windows
    assert (window.primary.owned, window.kept) == (4, 3)
    assert there(m) == [9]
    assert m.blocks_to_grow([1], [16]) == 1, "what the window has not left yet comes on top of what is kept"


def test_what_is_kept_is_nobody_elses() -> None:
    m = manager(primary=16, window_sizes=[WINDOW])
    m.add_sequence(SequenceRequest(1, prompt(1, 400)), chunk_tokens=16)
    with pytest.raises(OutOfBlocks) as caught:
        m.add_sequence(SequenceRequest(2, prompt(2, 10 * BLOCK)))
    assert (caught.value.blocks_needed, caught.value.blocks_free) == (10, 9)
    m.add_sequence(SequenceRequest(2, prompt(2, 9 * BLOCK)))
    with pytest.raises(OutOfBlocks):
        m.add_token(2)
    prefill(m, 1, 400, 16, 16)
    m.check_invariants()


def test_a_prompt_that_does_not_leave_its_window_keeps_the_rest_of_itself() -> None:
    m = manager(primary={8: 16, 400: 100}, window_sizes=[8, 400])  # type: ignore[arg-type]
    m.add_sequence(SequenceRequest(1, prompt(1, 400)), chunk_tokens=16)
    assert [window.kept for window in m.get_kv_cache_stats().windows] == [3, 96]
    assert there(m) == [9, 0]
    prefill(m, 1, 400, 16, 16)
    assert [window.kept for window in m.get_kv_cache_stats().windows] == [0, 0]
    m.check_invariants()


def test_blocks_enter_as_they_leave_and_the_rest_when_nothing_has_to_come_back() -> None:
    m = manager(primary=12, window_sizes=[WINDOW])
    tokens = prompt(1, 48)
    m.add_sequence(SequenceRequest(1, tokens), chunk_tokens=8)
    m.store_context_blocks(1, 8)
    assert reusable(m, tokens) == 0, "somebody who took a block over would keep its slot when it leaves"
    m.add_token(1, 8, computed=8)
    m.add_token(1, 8, computed=16)
    assert reusable(m, tokens) == 8
    prefill(m, 1, 48, 24, 8)
    assert reusable(m, tokens) == 48
    assert reusable(m, tokens[:40]) == 40


def test_every_end_in_the_middle_of_a_prompt_gives_back_what_was_kept() -> None:
    for store in (True, False):
        m = manager(primary=16, window_sizes=[WINDOW])
        m.add_sequence(SequenceRequest(1, prompt(1, 400)), chunk_tokens=16)
        m.add_token(1, 16, computed=16)
        m.remove_sequence(1, store=store, computed=24)
        assert there(m) == [16]
        assert reusable(m, prompt(1, 400)) == (24 if store else 8)
        m.check_invariants()


def test_a_copy_that_fails_under_a_chunk_leaves_it_its_room() -> None:
    m = manager(primary=16, host=8, window_sizes=[WINDOW])
    leave_behind(m, 1, prompt(1, 8))
    begin(m, 2, [*prompt(1, 8), 7])  # owns the block, so the next one copies from it
    admission = m.add_sequence(SequenceRequest(3, [*prompt(1, 6), *prompt(3, 394)]), chunk_tokens=16)
    assert admission.tokens_reused % BLOCK
    assert m.fail(m.take_transfers().ticket) == [3]
    prefill(m, 3, 400, m.get_token_count(3), 16)
    m.remove_sequence(3)
    m.remove_sequence(2)
    m.check_invariants()
    assert there(m) == [16]


def test_a_pin_takes_its_slot_out_of_what_is_kept_until_it_ends() -> None:
    m = manager(primary=7, window_sizes=[WINDOW])
    m.add_sequence(SequenceRequest(1, prompt(1, 400)), chunk_tokens=16)
    pinned = blocks_of(m, 1)
    m.pin_blocks_by_id(pinned)
    with pytest.raises(OutOfBlocks):
        prefill(m, 1, 400, 16, 16)
    digest = m.digest()
    with pytest.raises(OutOfBlocks):
        m.add_token(1, 16, computed=m.get_token_count(1))
    assert m.digest() == digest
    m.unpin_blocks_by_id(pinned)
    prefill(m, 1, 400, m.get_token_count(1), 16)


def test_a_sequence_is_not_suspended_between_two_chunks_but_behind_the_last() -> None:
    m = manager(primary=16, host=16, window_sizes=[WINDOW])
    m.add_sequence(SequenceRequest(1, prompt(1, 40)), chunk_tokens=16)
    digest = m.digest()
    with pytest.raises(ValueError, match="16 of its prompt's 40 tokens are reserved"):
        m.suspend_sequence(1)
    assert m.digest() == digest
    prefill(m, 1, 40, 16, 16)
    m.suspend_sequence(1)
    run_transfers(m)
    m.check_invariants()
    m.resume_sequence(1)
    run_transfers(m)
    m.add_token(1, 1, [5], computed=40)
    m.remove_sequence(1, computed=41)
    assert reusable(m, [*prompt(1, 40), 5]) == 41
    assert there(m) == [16]


def test_a_sequence_that_comes_back_takes_nothing_of_what_is_kept() -> None:
    m = manager(primary=16, host=16, window_sizes=[WINDOW])
    m.add_sequence(SequenceRequest(2, prompt(2, 10 * BLOCK)))
    m.suspend_sequence(2)
    run_transfers(m)
    m.add_sequence(SequenceRequest(1, prompt(1, 400)), chunk_tokens=16)
    assert (m.blocks_to_resume(2), there(m)) == ([10], [9])
    with pytest.raises(OutOfBlocks) as caught:
        m.resume_sequence(2)
    assert (caught.value.blocks_needed, caught.value.blocks_free) == (10, 9)
    prefill(m, 1, 400, 16, 16)
    m.remove_sequence(1)
    assert m.resume_sequence(2) == 10
    m.check_invariants()


def test_a_store_between_chunks_offers_nothing_that_has_to_come_back() -> None:
    m = manager(primary=12, window_sizes=[WINDOW])
    tokens = prompt(1, 48)
    m.add_sequence(SequenceRequest(1, tokens), chunk_tokens=8)
    m.store_context_blocks(1, 8)
    assert reusable(m, tokens) == 0
    prefill(m, 1, 48, 8, 8)
    assert reusable(m, tokens) == 48
    m.check_invariants()


def test_beams_share_the_chunks_and_end_in_blocks_of_their_own() -> None:
    m = manager(primary=16, window_sizes=[WINDOW], max_beam_width=3)
    m.add_sequence(SequenceRequest(1, prompt(1, 401), beam_width=3), chunk_tokens=16)
    prefill(m, 1, 401, 16, 16)
    rows = m.get_cache_block_ids(1, WINDOW)
    assert rows[0][:-1] == rows[1][:-1] == rows[2][:-1]
    assert len({row[-1] for row in rows}) == 3
    for length in range(401, 420):
        m.add_token(1, computed=length)
    m.check_invariants()


def test_beams_are_charged_for_what_they_grow_and_not_for_all_that_they_could() -> None:
    m = manager(primary=16, window_sizes=[WINDOW], max_beam_width=2)
    request = SequenceRequest(1, prompt(1, 400), beam_width=2)
    assert m.blocks_to_admit(request, chunk_tokens=16) == [7]
    assert m.blocks_to_admit(request, tokens_new_max=8, chunk_tokens=16) == [7 + 4]
    assert m.blocks_to_admit(request, tokens_new_max=1000, chunk_tokens=16) == [7 + 7]
    m.add_sequence(request, chunk_tokens=16)
    assert there(m) == [16 - 7]


def test_values_are_those_behind_the_prompt_alone() -> None:
    m = manager(primary=16, window_sizes=[WINDOW])
    tokens = prompt(1, 30)
    m.add_sequence(SequenceRequest(1, tokens), chunk_tokens=16)
    with pytest.raises(ValueError, match="token values"):
        m.add_token(1, 14, tokens[16:])
    m.add_token(1, 16, [5, 6], computed=16)
    m.remove_sequence(1, computed=32)
    assert reusable(m, [*tokens, 5, 6]) == 32


def test_nothing_of_a_prompt_is_rewound_and_nothing_unreserved_is_computed() -> None:
    m = manager(primary=16, window_sizes=[WINDOW])
    m.add_sequence(SequenceRequest(1, prompt(1, 30)), chunk_tokens=16)
    digest = m.digest()
    for call in (
        lambda: m.rewind_kv_cache(1, 1),
        lambda: m.store_context_blocks(1, 17),
        lambda: m.add_token(1, 1, computed=17),
        lambda: m.add_sequence(SequenceRequest(2, [1]), chunk_tokens=0),
        lambda: m.analyze_prefix_reuse(SequenceRequest(2, [1]), chunk_tokens=0),
        lambda: m.blocks_to_admit(SequenceRequest(2, [1]), chunk_tokens=0),
    ):
        with pytest.raises(ValueError, match=r"grown|computed|chunk"):
            call()
        assert m.digest() == digest


def test_the_budget_counts_the_first_chunk() -> None:
    m = manager(primary=64, window_sizes=[WINDOW])
    requests = [SequenceRequest(i, prompt(i, 100)) for i in (1, 2, 3)]
    answer = m.add_sequence_batch(requests, tokens_new_max=40, chunk_tokens=16)
    assert [each.request_id for each in answer.admitted] == [1, 2]
    assert [each.tokens_new for each in answer.admitted] == [100, 100]
    assert answer.deferred == [3]
