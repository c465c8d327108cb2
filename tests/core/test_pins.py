"""A pinned block keeps its slot and its bytes in the tier it was pinned in, until it is unpinned."""

import pytest

from trtllm_kvfix.native import BlockInFlight, BlockManager, OutOfBlocks, SequenceRequest

from .scenes import (
    BLOCK,
    NO_HASH,
    begin,
    hashes,
    kinds,
    leave_behind,
    manager,
    prompt,
    push_to_host,
    reusable,
    run_transfers,
)


def slot_of(m: BlockManager, tokens: list[int], tier: str) -> int:
    """The slot of the first block, looked up by pinning and unpinning."""
    [found] = m.find_and_pin_blocks_by_hash(hashes(tokens)[:1], tier=tier)
    assert found is not None
    m.unpin_blocks_by_id([found.block_id], tier=tier)
    return found.slot


def test_a_pinned_block_stays_under_any_pressure() -> None:
    m = manager(primary=4, host=2)
    leave_behind(m, 1, prompt(1, BLOCK))
    [pinned] = m.find_and_pin_blocks_by_hash(hashes(prompt(1, BLOCK)))
    assert pinned is not None and pinned.tier == "primary"
    for request_id in range(2, 30):
        push_to_host(m, request_id, blocks=3)
        with pytest.raises(OutOfBlocks):
            m.add_sequence(SequenceRequest(100, prompt(100, 4 * BLOCK)))
    assert slot_of(m, prompt(1, BLOCK), "primary") == pinned.slot
    assert reusable(m, prompt(1, BLOCK)) == BLOCK
    m.unpin_blocks_by_id([pinned.block_id])
    m.add_sequence(SequenceRequest(100, prompt(100, 4 * BLOCK)))


def test_a_pinned_host_block_is_copied_up_and_stays_where_it_is() -> None:
    m = manager(primary=2, host=2)
    leave_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    [pinned] = m.find_and_pin_blocks_by_hash(hashes(prompt(1, BLOCK)), tier="host")
    assert pinned is not None
    m.add_sequence(SequenceRequest(3, [*prompt(1, BLOCK), 5]))
    [item] = run_transfers(m)
    assert (item.kind, item.slot_src) == ("onboard", pinned.slot)
    m.remove_sequence(3)
    assert slot_of(m, prompt(1, BLOCK), "host") == pinned.slot
    for request_id in range(4, 20):
        leave_behind(m, request_id, prompt(request_id, 2 * BLOCK))
    assert slot_of(m, prompt(1, BLOCK), "host") == pinned.slot
    m.unpin_blocks_by_id([pinned.block_id])
    with pytest.raises(ValueError, match="pinned 0 times"):
        m.unpin_blocks_by_id([pinned.block_id])


def test_pins_are_counted_per_tier_and_ambiguity_is_refused() -> None:
    m = manager(primary=2, host=2)
    leave_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    [in_host] = m.find_and_pin_blocks_by_hash(hashes(prompt(1, BLOCK)))
    assert in_host is not None and in_host.tier == "host"
    begin(m, 3, [*prompt(1, BLOCK), 5])
    [(_, tier)] = m.pin_blocks_by_id([in_host.block_id])
    assert tier == "primary"
    with pytest.raises(ValueError, match="tier"):
        m.unpin_blocks_by_id([in_host.block_id])
    m.unpin_blocks_by_id([in_host.block_id], tier="host")
    m.unpin_blocks_by_id([in_host.block_id])
    with pytest.raises(ValueError, match=str(in_host.block_id)):
        m.unpin_blocks_by_id([in_host.block_id], tier="primary")


def test_a_block_pinned_twice_needs_two_unpins_and_a_third_raises() -> None:
    m = manager(primary=2)
    leave_behind(m, 1, prompt(1, BLOCK))
    [pinned] = m.find_and_pin_blocks_by_hash(hashes(prompt(1, BLOCK)))
    assert pinned is not None
    m.pin_blocks_by_id([pinned.block_id])
    m.unpin_blocks_by_id([pinned.block_id])
    with pytest.raises(OutOfBlocks):
        m.add_sequence(SequenceRequest(2, prompt(2, 2 * BLOCK)))
    with pytest.raises(ValueError, match="pinned"):
        m.unpin_blocks_by_id([pinned.block_id, pinned.block_id])
    m.unpin_blocks_by_id([pinned.block_id])
    with pytest.raises(ValueError, match="pinned"):
        m.unpin_blocks_by_id([pinned.block_id])
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
    m = manager(primary=2, host=2)
    leave_behind(m, 1, prompt(1, BLOCK))
    push_to_host(m, 2, blocks=2)
    m.add_sequence(SequenceRequest(3, [*prompt(1, BLOCK), 5]))
    digest = m.digest()
    with pytest.raises(BlockInFlight):
        m.pin_blocks(3)
    with pytest.raises(BlockInFlight):
        m.remove_sequence(3, pin=True)
    assert m.find_and_pin_blocks_by_hash(hashes(prompt(1, BLOCK)), tier="primary") == [None]
    assert m.digest() == digest
    assert kinds(run_transfers(m)) == ["onboard"]
    assert len(m.pin_blocks(3)) == 2


def test_an_id_that_holds_nothing_is_refused_and_nothing_else_is_pinned() -> None:
    m = manager(primary=2)
    begin(m, 1, prompt(1, BLOCK))
    [[alive]] = m.get_cache_block_ids(1)
    with pytest.raises(ValueError, match="12345"):
        m.pin_blocks_by_id([alive, 12345])
    with pytest.raises(ValueError, match="pinned"):
        m.unpin_blocks_by_id([alive])


def test_lookup_stops_at_the_first_miss_unless_told_otherwise() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    first, second = hashes(prompt(1, 2 * BLOCK))
    found = m.find_and_pin_blocks_by_hash([first, NO_HASH, second])
    assert [each is not None for each in found] == [True, False, False]
    found = m.find_and_pin_blocks_by_hash([first, NO_HASH, second], stop_on_miss=False)
    assert [each is not None for each in found] == [True, False, True]


def test_a_hash_that_two_blocks_share_is_a_miss() -> None:
    m = manager(primary=8, hash_bits=1, events_max=100)
    for family in range(5):
        leave_behind(m, family, prompt(family, BLOCK))
    stored = [event.block_hash for event in m.get_latest_events()]
    shared = max(stored, key=stored.count)
    assert m.find_and_pin_blocks_by_hash([shared]) == [None]
    m.add_sequence(SequenceRequest(9, prompt(9, 8 * BLOCK)))


def test_pins_by_sequence_cover_each_shared_block_once() -> None:
    m = manager(primary=8, max_beam_width=2)
    begin(m, 1, prompt(1, BLOCK + 1), beam_width=2)
    ids = m.pin_blocks(1)
    assert sorted(ids) == sorted({block for beam in m.get_cache_block_ids(1) for block in beam})
    assert len(ids) == 3


def test_half_a_hash_names_no_block() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, BLOCK))
    [whole] = hashes(prompt(1, BLOCK))
    with pytest.raises(ValueError, match="a block hash has 128 bits"):
        m.find_and_pin_blocks_by_hash([whole % 2**64])


def test_a_look_up_that_carries_a_request_is_refused_where_the_hashes_are_anothers() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, BLOCK), salt="one")
    theirs = hashes(prompt(1, BLOCK), salt="one")
    with pytest.raises(ValueError, match="request 2, hashes: number 0"):
        m.find_and_pin_blocks_by_hash(theirs, request=SequenceRequest(2, prompt(1, BLOCK), salt="other"))
    [found] = m.find_and_pin_blocks_by_hash(theirs, request=SequenceRequest(2, prompt(1, BLOCK), salt="one"))
    assert found is not None and found.block_hash == theirs[0]
