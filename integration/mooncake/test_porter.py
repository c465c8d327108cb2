"""A porter on the store itself, asked for more than an engine of the other tests has."""

import mmap
from contextlib import closing

import numpy as np

from integration.mooncake.nodes import Master, Node, until
from trtllm_kvfix.native import HostPool, open_device
from trtllm_kvfix.offload.host_tier import SEAL_BYTES
from trtllm_kvfix.offload.remote.messages import Get, Message, Outcome, Outcomes, Put, Spec
from trtllm_kvfix.offload.remote.worker import PorterHandle

BLOCK_BYTES, BLOCKS = 2048, 4096  # more than the store's client takes at once
TIMEOUT_S = 60.0


def test_thousands_of_small_blocks_are_put_and_come_back(master: Master, node: Node) -> None:
    """Others are put while they come back."""
    made = HostPool(
        open_device("cpu"), host_bytes=4 * BLOCKS * BLOCK_BYTES, block_bytes=BLOCK_BYTES, tail_bytes=SEAL_BYTES,
        shared=True,
    )  # fmt: skip
    with closing(made) as pool:
        slots = np.frombuffer(mmap.mmap(pool.descriptor, pool.bytes), np.uint8).reshape(pool.slots, pool.slot_bytes)
        slots[:BLOCKS] = np.random.default_rng(1).integers(0, 256, slots[:BLOCKS].shape, dtype=np.uint8)
        spec = Spec(
            -1, pool.descriptor, BLOCK_BYTES, pool.slot_bytes, pool.slots, 0, 1, master.address, "tcp", "127.0.0.1", 0
        )  # fmt: skip
        here, there = tuple(range(BLOCKS)), tuple(range(BLOCKS, 2 * BLOCKS))
        porter = PorterHandle(spec, TIMEOUT_S)
        try:
            until(lambda: porter.is_up, porter.text)
            assert porter.ask(Put(1, keys_of(1), here))
            assert ended(porter, 1) == {1: {Outcome.WHOLE}}
            assert porter.ask(Get(2, keys_of(1), there))
            assert porter.ask(Put(3, keys_of(2), here))
            assert ended(porter, 2) == {2: {Outcome.WHOLE}, 3: {Outcome.WHOLE}}
        finally:
            assert porter.close(TIMEOUT_S)
        sent, come = slots[:BLOCKS, :BLOCK_BYTES], slots[BLOCKS : 2 * BLOCKS, :BLOCK_BYTES]
        assert np.array_equal(sent, come)
    del node


def keys_of(which: int) -> tuple[bytes, ...]:
    return tuple(which.to_bytes(16, "little") + at.to_bytes(16, "little") for at in range(BLOCKS))


def ended(porter: PorterHandle, count: int) -> dict[int, set[Outcome]]:
    """Outcomes of the blocks of so many jobs."""
    answered: list[tuple[Message, Outcomes]] = []
    until(lambda: len(answered) >= count, "no answer", lambda: answered.extend(porter.take_answered()))
    assert not any(answer.error for _, answer in answered)
    return {message.number: set(answer.outcomes) for message, answer in answered}
