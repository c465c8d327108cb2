"""Each window has its own blocks; what has left a window is let go; reuse is what every window can serve."""

import pytest

from trtllm_kvfix.native import OutOfBlocks, Retention, SequenceRequest

from .scenes import BLOCK, begin, leave_behind, manager, prompt, push_to_host, reusable, run_transfers


def owned(m: object, w: int) -> int:
    return m.get_kv_cache_stats().windows[w].primary.owned  # type: ignore[attr-defined, no-any-return]


def test_blocks_leave_as_the_sequence_grows_and_others_may_have_their_slots() -> None:
    m = manager(primary=3, window_sizes=[BLOCK])
    begin(m, 1, prompt(1, BLOCK))
    for length in range(BLOCK, 20 * BLOCK):
        m.add_token(1, 1, [length], computed=length)
        assert owned(m, 0) <= 2
        [row] = m.get_cache_block_ids(1, BLOCK)
        assert len(row) == (length + 1 + BLOCK - 1) // BLOCK
        assert all(block == -1 for block in row[:-2]) and -1 not in row[-1:]
    m.check_invariants()


def test_growth_needs_its_room_before_anything_leaves() -> None:
    m = manager(primary=3, window_sizes=[BLOCK])
    begin(m, 1, prompt(1, 2 * BLOCK))
    for length in range(2 * BLOCK, 22 * BLOCK):
        m.add_token(1, computed=length)
    m = manager(primary=2, window_sizes=[BLOCK])
    m.add_sequence(SequenceRequest(1, prompt(1, 2 * BLOCK)))
    with pytest.raises(OutOfBlocks):
        m.add_token(1, computed=2 * BLOCK)


def test_what_leaves_stays_findable() -> None:
    m = manager(primary=16, window_sizes=[BLOCK])
    tokens = prompt(1, 6 * BLOCK)
    begin(m, 1, tokens[:BLOCK])
    for length in range(BLOCK, 6 * BLOCK):
        m.add_token(1, 1, [tokens[length]], computed=length)
    assert reusable(m, tokens) >= 4 * BLOCK
    m.remove_sequence(1, computed=6 * BLOCK)
    assert reusable(m, tokens) == 6 * BLOCK


def test_values_that_were_never_given_are_never_found() -> None:
    m = manager(primary=16, window_sizes=[BLOCK])
    begin(m, 1, prompt(1, BLOCK))
    m.add_token(1, 5 * BLOCK)
    m.add_token(1, computed=6 * BLOCK)
    m.remove_sequence(1, computed=6 * BLOCK + 1)
    assert reusable(m, prompt(1, BLOCK)) == BLOCK
    assert reusable(m, prompt(1, 2 * BLOCK)) == BLOCK


def test_store_context_lets_go_of_what_lies_before_the_window() -> None:
    m = manager(primary=8, window_sizes=[BLOCK])
    m.add_sequence(SequenceRequest(1, prompt(1, 4 * BLOCK)))
    assert owned(m, 0) == 4
    m.store_context_blocks(1, 3 * BLOCK)
    assert m.get_cache_block_ids(1, BLOCK)[0][:2] == [-1, -1]
    assert owned(m, 0) == 2
    assert reusable(m, prompt(1, 3 * BLOCK)) == 3 * BLOCK


def test_reused_blocks_before_the_window_are_not_held() -> None:
    m = manager(primary=8, window_sizes=[BLOCK])
    leave_behind(m, 1, prompt(1, 4 * BLOCK))
    admission = m.add_sequence(SequenceRequest(2, [*prompt(1, 4 * BLOCK), 5]))
    assert (admission.tokens_reused, admission.blocks_reused) == (4 * BLOCK, 4)
    row = m.get_cache_block_ids(2, BLOCK)[0]
    assert row[:3] == [-1, -1, -1] and -1 not in row[3:]


def test_reuse_is_what_every_window_can_serve() -> None:
    m = manager(primary={4: 12, 16: 5}, window_sizes=[4, 16])  # type: ignore[arg-type]
    leave_behind(m, 1, prompt(1, 4 * BLOCK))
    assert reusable(m, prompt(1, 4 * BLOCK)) == 4 * BLOCK
    m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))  # evicts the last of the large window's four, and no other
    run_transfers(m)
    promised = reusable(m, prompt(1, 4 * BLOCK))
    assert promised == 3 * BLOCK
    m.remove_sequence(2, store=False)
    admission = m.add_sequence(SequenceRequest(3, [*prompt(1, 4 * BLOCK), 5]))
    assert admission.tokens_reused == 3 * BLOCK
    assert admission.blocks_reused == 2 * 3


def test_a_batch_needs_room_in_every_window() -> None:
    m = manager(primary={4: 8, 16: 2}, window_sizes=[4, 16])  # type: ignore[arg-type]
    with pytest.raises(OutOfBlocks) as caught:
        m.add_sequence(SequenceRequest(1, prompt(1, 3 * BLOCK)))
    assert (caught.value.blocks_needed, caught.value.blocks_free, caught.value.window_size) == (3, 2, 16)
    assert [w.primary.free for w in m.get_kv_cache_stats().windows] == [8, 2]


def test_a_rewind_that_needs_what_has_left_is_refused() -> None:
    m = manager(primary=8, window_sizes=[BLOCK])
    begin(m, 1, prompt(1, 2))
    for length in range(2, 2 + 3 * BLOCK):
        m.add_token(1, computed=length)
    digest = m.digest()
    with pytest.raises(ValueError, match="left"):
        m.rewind_kv_cache(1, 2 * BLOCK)
    assert m.digest() == digest
    m.rewind_kv_cache(1, 1)


def test_the_window_must_be_named_where_there_are_several() -> None:
    m = manager(primary=8, window_sizes=[4, 16])
    begin(m, 1, prompt(1, BLOCK))
    with pytest.raises(ValueError, match="window"):
        m.get_cache_block_ids(1)
    ids = {m.get_cache_block_ids(1, size)[0][0] for size in (4, 16)}
    assert len(ids) == 2, "ids are unique over all windows"


def test_evicting_what_lies_outside_a_window_costs_no_reuse() -> None:
    m = manager(primary=6, window_sizes=[2 * BLOCK])
    tokens = prompt(1, 6 * BLOCK)
    leave_behind(m, 1, tokens)
    for blocks in range(1, 5):  # the oldest go first, one after the other, though something follows them
        m.add_sequence(SequenceRequest(2, prompt(2, blocks * BLOCK)))
        m.remove_sequence(2, store=False)
        assert reusable(m, tokens) == 6 * BLOCK
    assert [reusable(m, tokens[: blocks * BLOCK]) for blocks in range(1, 6)] == [0, 0, 0, 0, 0]
    admission = m.add_sequence(SequenceRequest(3, [*tokens, 5]))
    assert (admission.tokens_reused, admission.blocks_reused) == (6 * BLOCK, 6)
    assert m.get_cache_block_ids(3, 2 * BLOCK)[0][:4] == [-1] * 4
    m.check_invariants()


def test_a_window_without_one_of_its_blocks_is_not_hit() -> None:
    m = manager(primary=6, window_sizes=[2 * BLOCK])
    tokens = prompt(1, 6 * BLOCK)
    leave_behind(m, 1, tokens)
    m.add_sequence(SequenceRequest(2, prompt(2, 5 * BLOCK)))
    assert reusable(m, tokens) == 0


def test_what_comes_back_is_found_with_what_followed_it() -> None:
    m = manager(primary=6, window_sizes=[2 * BLOCK])
    tokens = prompt(1, 6 * BLOCK)
    leave_behind(m, 1, tokens)
    m.add_sequence(SequenceRequest(2, prompt(2, BLOCK)))
    m.remove_sequence(2, store=False)
    assert reusable(m, tokens[:BLOCK]) == 0
    leave_behind(m, 3, tokens[:BLOCK])
    assert [reusable(m, tokens[: blocks * BLOCK]) for blocks in range(1, 7)] == [
        blocks * BLOCK for blocks in range(1, 7)
    ]


def test_blocks_inside_their_window_wait_for_those_that_follow() -> None:
    m = manager(primary=4, window_sizes=[4 * BLOCK])
    tokens = prompt(1, 4 * BLOCK)
    leave_behind(m, 1, tokens, retention=Retention(ranges=[(BLOCK, None, 80, None)]))
    m.add_sequence(SequenceRequest(3, prompt(3, 2 * BLOCK)))
    assert reusable(m, tokens) == 2 * BLOCK


def test_several_windows_agree_on_what_all_of_them_allow() -> None:
    m = manager(primary={4: 6, 8: 6, 24: 16}, window_sizes=[4, 8, 24])  # type: ignore[arg-type]
    tokens = prompt(1, 6 * BLOCK)
    leave_behind(m, 1, tokens)
    m.add_sequence(SequenceRequest(2, prompt(2, 4 * BLOCK)))
    # The first two windows have their last two blocks left; the second needs both, so 20 tokens are not to be had.
    assert [reusable(m, tokens[: blocks * BLOCK]) for blocks in (4, 5, 6)] == [0, 0, 24]


def test_blocks_are_found_in_host_without_those_before_them() -> None:
    m = manager(primary=6, host=2, window_sizes=[2 * BLOCK])
    tokens = prompt(1, 6 * BLOCK)
    leave_behind(m, 1, tokens)
    for blocks in range(1, 7):  # each goes to host in turn, and the older ones make room there
        push_to_host(m, 10 + blocks, blocks)
    assert reusable(m, tokens) == 6 * BLOCK
    admission = m.add_sequence(SequenceRequest(3, [*tokens, 5]))
    assert (admission.tokens_reused, admission.blocks_onboarded) == (6 * BLOCK, 2)


def test_a_conversation_is_cut_behind_blocks_that_have_gone() -> None:
    m = manager(primary=6, window_sizes=[2 * BLOCK])
    tokens = prompt(1, 6 * BLOCK)
    leave_behind(m, 1, tokens)
    m.add_sequence(SequenceRequest(2, prompt(2, 3 * BLOCK)))
    assert m.truncate_blocks(SequenceRequest(9, tokens), 5 * BLOCK) == 1
    assert reusable(m, tokens) == 5 * BLOCK
    assert m.truncate_blocks(SequenceRequest(9, tokens), 0) == 2
    assert reusable(m, tokens) == 0
    m.check_invariants()


def test_a_window_of_one_block_serves_checkpoints_of_a_recurrent_state() -> None:
    m = manager(primary=4, window_sizes=[BLOCK], partial_reuse=False)
    tokens = prompt(1, 40 * BLOCK + 2)
    m.add_sequence(SequenceRequest(1, tokens), chunk_tokens=BLOCK)
    for length in range(BLOCK, len(tokens), BLOCK):
        m.add_token(1, min(BLOCK, len(tokens) - length), computed=length)
        assert owned(m, 0) <= 2, "the state that is read, and the one that is written"
    m.remove_sequence(1, computed=len(tokens))
    assert reusable(m, tokens) == 40 * BLOCK
    row = m.add_sequence(SequenceRequest(2, tokens), chunk_tokens=BLOCK)
    assert row.tokens_reused == 40 * BLOCK
