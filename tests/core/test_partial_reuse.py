"""The longest common prefix inside a block is reused, by takeover or by a copy, and never across different content."""

import pytest

from trtllm_kvfix.native import SequenceRequest

from .scenes import BLOCK, begin, kinds, leave_behind, manager, prompt, push_to_host, reusable, run_transfers

LONG = prompt(1, 2 * BLOCK)
FORK = [*LONG[:6], 77, 78]  # shares one block and two tokens of the second


def test_a_leaf_that_nobody_needs_is_taken_over_without_a_copy() -> None:
    m = manager(primary=2)
    leave_behind(m, 1, LONG)
    admission = m.add_sequence(SequenceRequest(2, FORK))
    assert (admission.tokens_reused, admission.blocks_reused, admission.blocks_new) == (6, 2, 0)
    assert run_transfers(m) == []
    assert reusable(m, LONG) == BLOCK, "what was taken over is no longer there for others"


def test_a_block_in_use_is_copied() -> None:
    m = manager(primary=4)
    begin(m, 1, LONG)
    source = m.get_cache_block_ids(1)[0][1]
    admission = m.add_sequence(SequenceRequest(2, FORK))
    assert admission.tokens_reused == 6
    [item] = run_transfers(m)
    assert (item.kind, item.tokens, item.block_id) == ("copy", 2, m.get_cache_block_ids(2)[0][1])
    assert item.slot_src != item.slot_dst
    assert m.get_cache_block_ids(1)[0][1] == source
    assert reusable(m, LONG) == 2 * BLOCK


def test_a_block_with_children_is_copied_even_if_nobody_owns_it() -> None:
    m = manager(primary=6)
    leave_behind(m, 1, prompt(1, 3 * BLOCK))
    m.add_sequence(SequenceRequest(2, FORK))
    assert kinds(run_transfers(m)) == ["copy"]
    assert reusable(m, prompt(1, 3 * BLOCK)) == 3 * BLOCK


def test_a_part_of_a_host_block_is_onboarded_and_the_block_stays_in_host() -> None:
    m = manager(primary=2, host=2)
    leave_behind(m, 1, LONG)
    push_to_host(m, 2, blocks=2)
    m.add_sequence(SequenceRequest(3, FORK))
    assert [(item.kind, item.tokens) for item in run_transfers(m)] == [("onboard", BLOCK), ("onboard", 2)]
    assert m.analyze_prefix_reuse(SequenceRequest(4, [*LONG, 1])).tokens == 2 * BLOCK


def test_two_requests_of_a_batch_share_one_leaf_by_takeover_and_copy() -> None:
    m = manager(primary=4)
    leave_behind(m, 1, prompt(1, BLOCK))
    batch = [SequenceRequest(i, [*prompt(1, 3), 70 + i]) for i in (2, 3)]
    admitted = m.add_sequence_batch(batch).admitted
    assert [each.tokens_reused for each in admitted] == [3, 3]
    [item] = m.take_transfers().items
    assert (item.kind, item.tokens) == ("copy", 3)
    m.check_invariants()


def test_without_copies_a_leaf_serves_one_request_of_a_batch() -> None:
    m = manager(primary=4, copy_on_partial_reuse=False)
    leave_behind(m, 1, prompt(1, BLOCK))
    batch = [SequenceRequest(i, [*prompt(1, 3), 70 + i]) for i in (2, 3)]
    assert [each.tokens_reused for each in m.add_sequence_batch(batch).admitted] == [3, 0]
    assert run_transfers(m) == []


def test_every_beam_gets_its_own_copy_of_the_incomplete_last_block() -> None:
    m = manager(primary=8, max_beam_width=3)
    leave_behind(m, 1, LONG)
    m.add_sequence(SequenceRequest(2, [*LONG[:6], 77], beam_width=3))
    items = run_transfers(m)
    assert [(item.kind, item.tokens) for item in items] == [("copy", 2)] * 3
    assert len({item.slot_src for item in items}) == 1 and len({item.slot_dst for item in items}) == 3
    beams = m.get_cache_block_ids(2)
    assert len({beam[0] for beam in beams}) == 1 and len({beam[1] for beam in beams}) == 3


def test_the_incomplete_last_block_of_a_finished_sequence_is_found_again() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, 6))
    assert reusable(m, prompt(1, 6)) == 6
    m.reset_reuse_state()
    begin(m, 2, prompt(1, 4))
    m.add_token(2, 2, prompt(1, 6)[4:])
    m.remove_sequence(2, computed=6)
    assert reusable(m, prompt(1, 6)) == 6


def test_the_longest_of_several_candidates_wins() -> None:
    m = manager(primary=12)
    for request_id, tokens in enumerate(([1, 2, 9, 9], [1, 2, 3, 9], [1, 9, 9, 9])):
        begin(m, request_id, tokens)
    m.add_sequence(SequenceRequest(9, [1, 2, 3, 4, 5]))
    [item] = m.take_transfers().items
    assert item.tokens == 3


def test_nothing_is_shared_inside_a_block_across_different_pictures() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, BLOCK), extra_keys=[(1, 3, b"cat")])
    assert reusable(m, prompt(1, 3), extra_keys=[(1, 3, b"dog")]) == 0
    assert reusable(m, prompt(1, 3), extra_keys=[(1, 3, b"cat")]) == 3


@pytest.mark.parametrize("options", [{"partial_reuse": False}, {"block_reuse": False}], ids=str)
def test_switched_off_it_never_happens(options: dict[str, bool]) -> None:
    m = manager(primary=8, **options)
    leave_behind(m, 1, LONG)
    expected = 0 if "block_reuse" in options else BLOCK
    assert reusable(m, LONG[:6]) == expected
    assert m.add_sequence(SequenceRequest(2, FORK)).tokens_reused == expected
    assert run_transfers(m) == []
