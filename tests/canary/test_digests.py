"""Digests at places of pinned memory, on the simulated device."""

import numpy as np
import pytest

from trtllm_kvfix.native import BlockDigests, Device, open_device

SLOTS, LAYERS, LAYER_BYTES = 4, 3, 256
KEY = 7


class Pool:
    def __init__(self) -> None:
        self.device: Device = open_device("cpu", seed=0)
        self.stream = self.device.create_stream()
        self.memory = self.device.empty((SLOTS * LAYERS * LAYER_BYTES,), "uint8")
        content = np.random.default_rng(0).integers(0, 256, self.memory.nbytes, np.uint8)
        self.device.upload(self.memory, content, self.stream)

    def digests(self, *, parts: int = 1, places: int = 5) -> BlockDigests:
        return self.device.block_digests(self.memory.address, LAYERS * LAYER_BYTES, LAYERS, parts, places, KEY)

    def of(self, digests: BlockDigests, first: int, slots: list[int]) -> list[bytes]:
        digests.launch(first, slots, self.stream)
        self.device.synchronize(self.stream)
        return digests.read(first, len(slots))


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_parts_of_a_layer_add_up_to_the_same_digest(pool: Pool) -> None:
    whole = pool.of(pool.digests(), 0, [0, 1, 2, 3])
    assert pool.of(pool.digests(parts=4), 0, [0, 1, 2, 3]) == whole
    assert len(set(whole)) == SLOTS and {len(each) for each in whole} == {8 * LAYERS}


def test_each_block_is_at_its_place(pool: Pool) -> None:
    digests = pool.digests()
    first = pool.of(digests, 0, [2, 1])
    behind = pool.of(digests, 2, [1, 0, 2])
    assert digests.read(0, 5) == first + behind
    assert (first[0], first[1]) == (behind[2], behind[0])


def test_places_that_are_not_there_are_refused(pool: Pool) -> None:
    digests = pool.digests()
    with pytest.raises(ValueError, match="2 blocks from place 4 on, of 5"):
        digests.launch(4, [1, 2], pool.stream)
    with pytest.raises(ValueError, match="0 blocks from place 6 on, of 5"):
        digests.read(6, 0)
    with pytest.raises(ValueError, match="6 blocks from place 0 on, of 5"):
        digests.read(0, 6)


def test_a_block_without_layers_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="layers is 0"):
        pool.device.block_digests(pool.memory.address, LAYERS * LAYER_BYTES, 0, 1, 5, KEY)


def test_it_says_how_many_blocks_it_takes(pool: Pool) -> None:
    assert repr(pool.digests()) == "BlockDigests(places=5, layers=3)"
