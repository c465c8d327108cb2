"""A pinned block keeps its slot and its bytes in the tier it was pinned in, until it is unpinned."""

import pytest

from trtllm_kvfix.native import BlockInFlight, BlockManager, OutOfBlocks, SequenceRequest

from .scenes import (
    BLOCK,
    begin,
    blocks_of,
    kinds,
    leave_behind,
    leave_blocks_behind,
    manager,
    prompt,
    push_to_host,
    reusable,
    run_transfers,
)


def place_of(m: BlockManager, blocks: list[int]) -> tuple[int, str]:
    """Of one block, looked up by pinning and unpinning."""
    [(slot, tier)] = m.pin_blocks_by_id(blocks)
    m.unpin_blocks_by_id(blocks, tier=tier)
    return slot, tier


def test_a_pinned_block_stays_under_any_pressure() -> None:
    m = manager(primary=4, host=2)
    blocks = leave_blocks_behind(m, 1, prompt(1, BLOCK))
    [pinned] = m.pin_blocks_by_id(blocks)
    assert pinned[1] == "primary"
    for request_id in range(2, 30):
        push_to_host(m, request_id, blocks=3)
        with pytest.raises(OutOfBlocks):
            m.add_sequence(SequenceRequest(100, prompt(100, 4 * BLOCK)))
    assert place_of(m, blocks) == pinned
    assert reusable(m, prompt(1, BLOCK)) == BLOCK
    m.unpin_blocks_by_id(blocks)
    m.add_sequence(SequenceRequest(100, prompt(100, 4 * BLOCK)))


def test_a_pinned_host_block_is_copied_up_and_stays_where_it_is() -> None:
    m = manager(primary=2, host=2)
    blocks = leave_blocks_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    [pinned] = m.pin_blocks_by_id(blocks)
    assert pinned[1] == "host"
    m.add_sequence(SequenceRequest(3, [*prompt(1, BLOCK), 5]))
    [item] = run_transfers(m)
    assert (item.kind, item.slot_src) == ("onboard", pinned[0])
    m.remove_sequence(3)
    for request_id in range(4, 20):
        leave_behind(m, request_id, prompt(request_id, 2 * BLOCK))
    assert place_of(m, blocks) == pinned
    m.unpin_blocks_by_id(blocks)
    with pytest.raises(ValueError, match="pinned 0 times"):
        m.unpin_blocks_by_id(blocks)


def test_pins_are_counted_per_tier_and_ambiguity_is_refused() -> None:
    m = manager(primary=2, host=2)
    [block] = leave_blocks_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    [(_, first)] = m.pin_blocks_by_id([block])
    begin(m, 3, [*prompt(1, BLOCK), 5])
    [(_, second)] = m.pin_blocks_by_id([block])
    assert (first, second) == ("host", "primary")
    with pytest.raises(ValueError, match="tier"):
        m.unpin_blocks_by_id([block])
    m.unpin_blocks_by_id([block], tier="host")
    m.unpin_blocks_by_id([block])
    with pytest.raises(ValueError, match=str(block)):
        m.unpin_blocks_by_id([block], tier="primary")


def test_a_block_pinned_twice_needs_two_unpins_and_a_third_raises() -> None:
    m = manager(primary=2)
    [block] = leave_blocks_behind(m, 1, prompt(1, BLOCK))
    m.pin_blocks_by_id([block])
    m.pin_blocks_by_id([block])
    m.unpin_blocks_by_id([block])
    with pytest.raises(OutOfBlocks):
        m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))
    with pytest.raises(ValueError, match="pinned"):
        m.unpin_blocks_by_id([block, block])
    m.unpin_blocks_by_id([block])
    with pytest.raises(ValueError, match="pinned"):
        m.unpin_blocks_by_id([block])
    m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))


def test_removing_a_sequence_with_pins_keeps_even_its_private_blocks() -> None:
    m = manager(primary=2)
    begin(m, 1, prompt(1, BLOCK + 1))
    ids = m.remove_sequence(1, store=False, pin=True)
    assert len(set(ids)) == 2
    with pytest.raises(OutOfBlocks):
        m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))
    m.unpin_blocks_by_id(ids)
    m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))


def test_a_block_in_flight_cannot_be_pinned() -> None:
    m = manager(primary=4)
    begin(m, 1, prompt(1, 2 * BLOCK))
    m.add_sequence(SequenceRequest(3, [*prompt(1, BLOCK + 2), 5]))
    digest = m.digest()
    with pytest.raises(BlockInFlight):
        m.pin_blocks_by_id(blocks_of(m, 3))
    with pytest.raises(BlockInFlight):
        m.remove_sequence(3, pin=True)
    assert m.digest() == digest
    assert kinds(run_transfers(m)) == ["copy"]
    assert len(m.pin_blocks_by_id(blocks_of(m, 3))) == 2


def test_an_id_that_holds_nothing_is_refused_and_nothing_else_is_pinned() -> None:
    m = manager(primary=2)
    begin(m, 1, prompt(1, BLOCK))
    [[alive]] = m.get_cache_block_ids(1)
    with pytest.raises(ValueError, match="12345"):
        m.pin_blocks_by_id([alive, 12345])
    with pytest.raises(ValueError, match="pinned"):
        m.unpin_blocks_by_id([alive])
