"""In flight is a state; copies in their order keep every value; half a block is never served; clean copies are kept."""

import random

import pytest

from trtllm_kvfix.native import OutOfBlocks, SequenceRequest

from .engine import Engine
from .scenes import BLOCK, begin, blocks_of, kinds, leave_behind, manager, prompt, push_to_host, reusable, run_transfers


@pytest.mark.parametrize("windows", [None, [5], [4, 9]], ids=str)
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_every_sequence_finds_its_own_values_whatever_moved(windows: list[int] | None, loss: float) -> None:
    reused = 0
    for seed in range(100):
        rng = random.Random(seed)
        m = manager(rng.randint(4, 14), rng.randint(0, 8), window_sizes=windows, tokens_per_block=rng.randint(1, 4))
        engine = Engine(m, rng, loss)
        for _ in range(100):
            engine.step()
        reused += engine.reused
    assert reused > 500, "a loop that reuses nothing shows nothing"


def test_an_onboarding_block_is_shared_only_by_the_batch_that_queued_it() -> None:
    m = manager(primary=6, host=2)
    leave_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=6)
    batch = [SequenceRequest(i, [*prompt(1, BLOCK), i]) for i in (3, 4)]
    assert [each.tokens_reused for each in m.add_sequence_batch(batch).admitted] == [BLOCK, BLOCK]
    assert reusable(m, prompt(1, BLOCK)) == 0
    ticket = m.take_transfers().ticket
    assert reusable(m, prompt(1, BLOCK)) == 0
    m.complete(ticket)
    assert reusable(m, prompt(1, BLOCK)) == BLOCK


def test_an_offloaded_block_cannot_be_found_until_it_has_arrived() -> None:
    m = manager(primary=1, host=1)
    leave_behind(m, 1, prompt(1, BLOCK))
    m.add_sequence(SequenceRequest(2, prompt(2, 1)))
    assert reusable(m, prompt(1, BLOCK)) == 0
    assert kinds(run_transfers(m)) == ["offload"]
    assert reusable(m, prompt(1, BLOCK)) == BLOCK


def test_a_source_keeps_its_slot_until_the_copy_has_ended() -> None:
    m = manager(primary=3)
    begin(m, 1, prompt(1, BLOCK))
    m.add_sequence(SequenceRequest(2, [*prompt(1, 3), 7]))
    batch = m.take_transfers()
    m.remove_sequence(1)
    m.remove_sequence(2)
    with pytest.raises(OutOfBlocks) as caught:
        m.add_sequence(SequenceRequest(3, prompt(3, 3 * BLOCK)))
    assert caught.value.blocks_free == 1
    m.complete(batch.ticket)
    m.add_sequence(SequenceRequest(3, prompt(3, 3 * BLOCK)))


def test_a_host_source_is_not_evicted_while_it_is_read() -> None:
    m = manager(primary=2, host=1)
    leave_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    m.add_sequence(SequenceRequest(3, [*prompt(1, BLOCK), 5]))
    batch = m.take_transfers()
    m.remove_sequence(3, store=False)
    stats = m.get_kv_cache_stats().windows[0]
    assert (stats.host.owned, stats.primary.in_flight) == (1, 1)
    m.complete(batch.ticket)
    stats = m.get_kv_cache_stats().windows[0]
    assert (stats.host.cached, stats.primary.in_flight, stats.primary.cached) == (1, 0, 1)


def test_coming_back_keeps_the_host_copy_and_leaving_again_costs_no_transfer() -> None:
    m = manager(primary=2, host=4)
    leave_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    begin(m, 3, [*prompt(1, BLOCK), 5])
    m.remove_sequence(3)
    m.add_sequence(SequenceRequest(4, prompt(4, 2 * BLOCK)))
    assert [item.tokens for item in run_transfers(m)] == [1], "only the new, incomplete block had to be copied"
    assert reusable(m, prompt(1, BLOCK)) == BLOCK


def test_a_failed_onboard_is_forgotten_and_its_owners_are_told() -> None:
    m = manager(primary=6, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    push_to_host(m, 2, blocks=6)
    m.add_sequence_batch([SequenceRequest(3, [*prompt(1, 2 * BLOCK), 5]), SequenceRequest(4, prompt(4, 2))])
    assert m.fail(m.take_transfers().ticket) == [3]
    assert reusable(m, prompt(1, 2 * BLOCK)) == 0
    m.store_context_blocks(3, 2 * BLOCK + 1)
    m.add_token(3, BLOCK, prompt(9, BLOCK))
    m.remove_sequence(3, computed=3 * BLOCK + 1)
    assert reusable(m, prompt(1, 2 * BLOCK)) == 0, "storing stops before what never came, for ever"
    stats = m.get_kv_cache_stats()
    assert stats.windows[0].host.free == 4
    assert stats.total.blocks_failed == 2


def test_a_failed_offload_is_forgotten_and_hurts_nobody() -> None:
    m = manager(primary=1, host=1)
    leave_behind(m, 1, prompt(1, BLOCK))
    m.add_sequence(SequenceRequest(2, prompt(2, 1)))
    assert m.fail(m.take_transfers().ticket) == []
    assert reusable(m, prompt(1, BLOCK)) == 0
    assert m.get_kv_cache_stats().windows[0].host.free == 1


def test_nothing_is_stored_on_a_copy_that_has_not_ended() -> None:
    m = manager(primary=6)
    begin(m, 1, prompt(1, BLOCK))
    fork = [*prompt(1, 2), 70, 71, 72, 73, 74, 75]
    m.add_sequence(SequenceRequest(2, fork))
    ticket = m.take_transfers().ticket
    m.store_context_blocks(2, len(fork))
    assert reusable(m, fork) == 2, "what the two prompts share"
    m.complete(ticket)
    m.store_context_blocks(2, len(fork))
    assert reusable(m, fork) == len(fork)


def test_bytes_that_never_came_in_one_window_stop_storing_in_all() -> None:
    m = manager(primary=12, window_sizes=[BLOCK, 8 * BLOCK])
    begin(m, 1, prompt(1, BLOCK))
    m.pin_blocks_by_id(blocks_of(m, 1, 8 * BLOCK))
    m.remove_sequence(1)
    fork = [*prompt(1, 2), 70, 71, 72, 73, 74, 75]
    m.add_sequence(SequenceRequest(2, fork))
    lost = m.take_transfers()
    assert [item.window_size for item in lost.items] == [8 * BLOCK], "the other window takes the block over"
    assert m.fail(lost.ticket) == [2]
    stored = m.get_kv_cache_stats().total.blocks_stored
    m.store_context_blocks(2, len(fork))
    m.remove_sequence(2)
    assert m.get_kv_cache_stats().total.blocks_stored == stored


def test_what_was_computed_from_a_lost_copy_is_never_served() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, BLOCK))
    fork = [*prompt(1, 2), 70, 71]
    m.add_sequence(SequenceRequest(2, [*fork, 72, 73, 74, 75]))
    lost = m.take_transfers().ticket
    begin(m, 3, fork)  # the same content arrives by another way meanwhile
    m.store_context_blocks(2, 2 * BLOCK)
    assert m.fail(lost) == [2]
    assert reusable(m, [*fork, 72, 73, 74, 75]) == BLOCK


def test_tickets_end_once_and_in_any_order() -> None:
    m = manager(primary=2, host=2)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    m.add_sequence(SequenceRequest(2, prompt(2, BLOCK)))
    first = m.take_transfers().ticket
    m.add_sequence(SequenceRequest(3, prompt(3, BLOCK)))
    second = m.take_transfers().ticket
    m.complete(second)
    m.complete(first)
    for ended in (first, second, 12345):
        with pytest.raises(ValueError, match=str(ended)):
            m.complete(ended)
        with pytest.raises(ValueError, match=str(ended)):
            m.fail(ended)


def test_a_batch_without_transfers_needs_no_end_and_may_have_many() -> None:
    m = manager(primary=2, host=2)
    for _ in range(3):
        batch = m.take_transfers()
        assert (batch.ticket, batch.items) == (0, []), "a ticket of its own would be kept until it ends"
        m.complete(batch.ticket)
        assert m.fail(batch.ticket) == []


def test_transfers_come_in_the_order_in_which_they_must_run() -> None:
    """Each slot that an offload frees is written only after the offload has read it."""
    m = manager(primary=4, host=8)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    leave_behind(m, 2, prompt(2, 2 * BLOCK))
    push_to_host(m, 3, blocks=4)
    leave_behind(m, 4, prompt(4, 4 * BLOCK))
    m.add_sequence(SequenceRequest(5, [*prompt(1, 2 * BLOCK), 5]))
    items = m.take_transfers().items
    assert kinds(items) == ["offload", "onboard", "offload", "onboard", "offload"]
    assert [items[0].slot_src, items[2].slot_src] == [items[1].slot_dst, items[3].slot_dst]
