"""A preempted sequence gives its primary blocks up, comes back by its id, and finds its own values."""

import pytest

from trtllm_kvfix.native import BlockInFlight, OutOfBlocks, SequenceRequest

from .scenes import BLOCK, begin, kinds, manager, prompt, run_transfers


def test_two_sequences_take_turns_in_a_pool_that_holds_one() -> None:
    m = manager(primary=4, host=8)
    begin(m, 1, prompt(1, 3 * BLOCK + 1))
    assert m.suspend_sequence(1) == 4
    begin(m, 2, prompt(2, 3 * BLOCK + 1))
    for away, back in [(2, 1), (1, 2), (2, 1)]:
        m.suspend_sequence(away)
        with pytest.raises(BlockInFlight):
            m.resume_sequence(away)
        run_transfers(m)
        assert m.blocks_to_resume(back) == [4]
        assert m.resume_sequence(back) == 4
        assert kinds(run_transfers(m)) == ["onboard"] * 4
    m.check_invariants()


def test_the_refusal_says_which_tier_is_short() -> None:
    m = manager(primary=4, host=1)
    begin(m, 1, prompt(1, 2 * BLOCK))
    with pytest.raises(OutOfBlocks, match="2 host blocks needed, 1 free") as host:
        m.suspend_sequence(1)
    assert (host.value.tier, host.value.blocks_needed, host.value.blocks_free) == ("host", 2, 1)
    with pytest.raises(OutOfBlocks) as primary:
        m.add_sequence(SequenceRequest(2, prompt(2, 5 * BLOCK)))
    assert primary.value.tier == "primary"


def test_events_say_where_a_suspended_prefix_is_read_from() -> None:
    m = manager(primary=2, host=4, events_max=100)
    begin(m, 1, prompt(1, 2 * BLOCK))
    m.get_latest_events()
    m.suspend_sequence(1)
    run_transfers(m)
    assert m.get_latest_events() == [], "it can still be read in primary"
    m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))
    assert [(event.kind, event.tier) for event in m.get_latest_events()] == [("updated", "host")] * 2
    m.remove_sequence(2, store=False)
    m.resume_sequence(1)
    assert [(event.kind, event.tier) for event in m.get_latest_events()] == [("updated", "primary")] * 2


def test_what_a_suspended_sequence_stores_as_it_ends_is_stored_in_host() -> None:
    m = manager(primary=2, host=4, events_max=100)
    m.add_sequence(SequenceRequest(1, prompt(1, BLOCK)))
    m.suspend_sequence(1)
    run_transfers(m)
    m.remove_sequence(1, computed=BLOCK)
    assert [(event.kind, event.tier) for event in m.get_latest_events()] == [("stored", "host")]


def test_ranks_that_preempt_alike_are_alike() -> None:
    digests = []
    for asked in (True, False):
        m = manager(primary=4, host=4)
        begin(m, 1, prompt(1, 2 * BLOCK + 1))
        m.suspend_sequence(1)
        run_transfers(m)
        if asked:
            m.digest()
        m.resume_sequence(1)
        run_transfers(m)
        digests.append(m.digest())
    assert digests[0] == digests[1]


def test_the_digest_tells_a_suspended_sequence_from_a_live_one() -> None:
    m = manager(primary=4, host=4)
    begin(m, 1, prompt(1, BLOCK))
    before = m.digest()
    m.suspend_sequence(1)
    assert m.digest() != before
