"""A seal shows every byte that has changed, and that a payload is another block's."""

import numpy as np
import pytest

from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote.porter_process import Seals

BLOCK_BYTES, SLOT_BYTES = 48, 128
KEYS = [bytes([number]) * 32 for number in range(4)]
SLOTS = [3, 0, 2, 5]


class Pool:
    def __init__(self) -> None:
        self.bytes = np.random.default_rng(1).integers(0, 256, 6 * SLOT_BYTES, dtype=np.uint8)
        self.before = self.bytes.copy()
        self.slots = self.bytes.reshape(6, SLOT_BYTES)
        self.seals = Seals(self.bytes, BLOCK_BYTES, SLOT_BYTES)
        self.seals.write(KEYS, SLOTS)


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_what_is_unchanged_holds(pool: Pool) -> None:
    assert pool.seals.hold(KEYS, SLOTS) == [True] * 4


def test_a_seal_is_written_behind_its_block_alone(pool: Pool) -> None:
    ours = np.zeros((6, SLOT_BYTES), bool)
    ours[SLOTS, BLOCK_BYTES : BLOCK_BYTES + SEAL_BYTES] = True
    before = pool.before.reshape(6, SLOT_BYTES)
    assert np.array_equal(pool.slots[~ours], before[~ours])
    assert (pool.slots != before)[SLOTS].any(axis=1).all()


def test_every_changed_byte_is_seen(pool: Pool) -> None:
    for at in range(BLOCK_BYTES + SEAL_BYTES):
        pool.slots[3, at] ^= 1
        assert pool.seals.hold(KEYS, SLOTS) == [False, True, True, True]
        pool.slots[3, at] ^= 1
    pool.slots[3, BLOCK_BYTES + SEAL_BYTES] ^= 1
    assert pool.seals.hold(KEYS, SLOTS) == [True] * 4


def test_another_blocks_payload_with_its_seal_is_seen(pool: Pool) -> None:
    pool.slots[0] = pool.slots[2]
    assert pool.seals.hold(KEYS, SLOTS) == [True, False, True, True]


def test_a_slot_that_nothing_came_to_holds_nothing(pool: Pool) -> None:
    """Its last contents are still there."""
    pool.seals.clear(SLOTS[:1])
    assert pool.seals.hold(KEYS, SLOTS) == [False, True, True, True]


def test_payloads_of_another_size_do_not_hold(pool: Pool) -> None:
    other = Seals(pool.bytes, BLOCK_BYTES // 2, SLOT_BYTES)
    assert other.hold(KEYS, SLOTS) == [False] * 4


def test_slots_without_room_for_a_seal_are_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="slots of 79 bytes have no room for 48 and a seal of 32"):
        Seals(pool.bytes, BLOCK_BYTES, BLOCK_BYTES + SEAL_BYTES - 1)
