"""Digests in a ring of pinned memory, on the simulated device."""

import numpy as np
import pytest

from trtllm_kvfix.native import Device, DigestRing, open_device

SLOTS, LAYERS, LAYER_BYTES = 4, 3, 256
KEY = 7


class Pool:
    def __init__(self) -> None:
        self.device: Device = open_device("cpu", seed=0)
        self.stream = self.device.create_stream()
        self.memory = self.device.empty((SLOTS * LAYERS * LAYER_BYTES,), "uint8")
        content = np.random.default_rng(0).integers(0, 256, self.memory.nbytes, np.uint8)
        self.device.upload(self.memory, content, self.stream)

    def where(self, layers: int = LAYERS, parts: int = 1) -> tuple[int, int, int, int]:
        return self.memory.address, LAYERS * LAYER_BYTES, layers, parts

    def ring(self, *where: tuple[int, int, int, int], places: int = 5) -> DigestRing:
        return self.device.digest_ring(self.stream, list(where or [self.where()]), places, KEY)

    def of(self, ring: DigestRing, slots: list[int]) -> list[bytes]:
        ring.send(slots)
        self.device.synchronize(self.stream)
        (found,) = ring.arrived()
        return found


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_parts_of_a_layer_add_up_to_the_same_digest(pool: Pool) -> None:
    whole = pool.of(pool.ring(), [0, 1, 2, 3])
    assert pool.of(pool.ring(pool.where(parts=4)), [0, 1, 2, 3]) == whole
    assert len(set(whole)) == SLOTS and {len(each) for each in whole} == {8 * LAYERS}


def test_a_ring_goes_round(pool: Pool) -> None:
    """Two of five places a time: the third sending lies at its end and at its beginning."""
    ring, whole = pool.ring(), pool.of(pool.ring(), [0, 1, 2, 3])
    for first, second in ((2, 1), (1, 0), (3, 2), (0, 3), (1, 2)):
        assert pool.of(ring, [first, second]) == [whole[first], whole[second]]


def test_a_block_has_the_layers_of_all_pools(pool: Pool) -> None:
    """Round the end of the ring as well."""
    both = pool.ring(pool.where(), pool.where(layers=1))
    one, other = pool.of(pool.ring(), [0, 1, 2, 3]), pool.of(pool.ring(pool.where(layers=1)), [0, 1, 2, 3])
    for slots in ([0, 1, 2], [3, 2, 1]):
        assert pool.of(both, slots) == [one[slot] + other[slot] for slot in slots]


def test_what_was_sent_arrives_in_its_order_and_gives_its_places_back(pool: Pool) -> None:
    ring, whole = pool.ring(), pool.of(pool.ring(), [0, 1, 2, 3])
    gate = pool.device.close_gate(pool.stream)
    for slots in ([2], [], [1, 0]):
        ring.send(slots)
    assert (ring.arrived(), ring.free, ring.done()) == ([], 2, False)
    pool.device.open_gate(gate)
    pool.device.synchronize(pool.stream)
    assert ring.done()
    assert ring.arrived() == [[whole[2]], [whole[1], whole[0]]]
    assert (ring.arrived(), ring.free) == ([], 5)


def test_more_than_there_is_room_for_is_refused(pool: Pool) -> None:
    """And nothing of it is sent."""
    ring = pool.ring()
    gate = pool.device.close_gate(pool.stream)
    ring.send([0, 1, 2])
    with pytest.raises(ValueError, match="3 blocks for a ring in which 2 of 5 places are free"):
        ring.send([0, 1, 2])
    pool.device.open_gate(gate)
    pool.device.synchronize(pool.stream)
    assert [len(found) for found in ring.arrived()] == [3]


def test_a_block_without_layers_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="layers is 0"):
        pool.ring(pool.where(layers=0))


def test_it_says_how_many_blocks_it_takes(pool: Pool) -> None:
    assert repr(pool.ring()) == "DigestRing(places=5, free=5, layers=3)"
