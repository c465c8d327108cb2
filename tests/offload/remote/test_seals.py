"""A seal shows every byte that has changed, and that a payload is another block's."""

import numpy as np
import pytest

from trtllm_kvfix.offload.remote.seals import SEAL_BYTES, Seals

BLOCK_BYTES = 48
KEYS = [bytes([number]) * 32 for number in range(4)]
SLOTS = [3, 0, 2, 5]


class Pool:
    def __init__(self) -> None:
        self.bytes = np.random.default_rng(1).integers(0, 256, 6 * BLOCK_BYTES, dtype=np.uint8)
        self.seal_bytes = np.zeros(6 * SEAL_BYTES, np.uint8)
        self.seals = Seals(self.bytes, BLOCK_BYTES, self.seal_bytes)
        self.seals.write(KEYS, SLOTS)


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_what_is_unchanged_holds(pool: Pool) -> None:
    assert pool.seals.hold(KEYS, SLOTS) == [True] * 4


def test_every_changed_byte_is_seen(pool: Pool) -> None:
    for at in range(BLOCK_BYTES):
        pool.bytes[3 * BLOCK_BYTES + at] ^= 1
        assert pool.seals.hold(KEYS, SLOTS) == [False, True, True, True]
        pool.bytes[3 * BLOCK_BYTES + at] ^= 1
    for at in range(SEAL_BYTES):
        pool.seal_bytes[5 * SEAL_BYTES + at] ^= 1
        assert pool.seals.hold(KEYS, SLOTS) == [True, True, True, False]
        pool.seal_bytes[5 * SEAL_BYTES + at] ^= 1


def test_another_blocks_payload_with_its_seal_is_seen(pool: Pool) -> None:
    pool.bytes[:BLOCK_BYTES] = pool.bytes[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]
    pool.seal_bytes[:SEAL_BYTES] = pool.seal_bytes[2 * SEAL_BYTES : 3 * SEAL_BYTES]
    assert pool.seals.hold(KEYS, SLOTS) == [True, False, True, True]


def test_a_slot_that_nothing_came_to_holds_nothing(pool: Pool) -> None:
    """Its last contents are still there."""
    pool.seals.clear(SLOTS[:1])
    assert pool.seals.hold(KEYS, SLOTS) == [False, True, True, True]


def test_payloads_of_another_size_do_not_hold(pool: Pool) -> None:
    other = Seals(pool.bytes, BLOCK_BYTES // 2, pool.seal_bytes)
    assert other.hold(KEYS, SLOTS) == [False] * 4
