"""A host pool whose pages another process may map, as the remote tier needs it: pinned and copied like any other."""

import mmap

import numpy as np
import pytest

from trtllm_kvfix.native import Device, DeviceError, HostPool, open_device
from trtllm_kvfix.offload.host_tier import SEAL_BYTES

try:
    DEVICE: Device | None = open_device("cuda")
    WHY_NOT = ""
except DeviceError as error:
    DEVICE, WHY_NOT = None, str(error)

pytestmark = pytest.mark.skipif(DEVICE is None, reason=f"no CUDA device: {WHY_NOT}")
BLOCK_BYTES, BLOCKS = 1 << 20, 64


@pytest.mark.parametrize("tail_bytes", [0, SEAL_BYTES])
def test_the_device_and_another_mapping_see_the_same_pages(tail_bytes: int) -> None:
    """Pieces are small, so that slots lie in several, and the last ends within a page where slots have a tail."""
    assert DEVICE is not None
    pool = HostPool(
        DEVICE, host_bytes=(2 * BLOCKS + 1) * BLOCK_BYTES, block_bytes=BLOCK_BYTES, tail_bytes=tail_bytes,
        piece_bytes_max=16 * BLOCK_BYTES, shared=True,
    )  # fmt: skip
    assert pool.bytes_pinned == pool.bytes
    slots = np.frombuffer(mmap.mmap(pool.descriptor, pool.bytes), np.uint8).reshape(pool.slots, pool.slot_bytes)
    slots[:] = np.random.default_rng(1).integers(0, 256, slots.shape, np.uint8)
    tails = slots[:, BLOCK_BYTES:].copy()
    stream, memory = DEVICE.create_stream(), DEVICE.empty((BLOCKS, BLOCK_BYTES), "uint8")
    numbers, sizes = np.arange(BLOCKS, dtype=np.uint64), np.full(BLOCKS, BLOCK_BYTES, np.uint64)
    there = np.uint64(memory.address) + numbers * np.uint64(BLOCK_BYTES)
    here = np.uint64(pool.address) + numbers * np.uint64(pool.slot_bytes)
    DEVICE.copy_batch(there, here, sizes, "any", stream)
    DEVICE.copy_batch(here + np.uint64(BLOCKS * pool.slot_bytes), there, sizes, "stream", stream)
    DEVICE.synchronize(stream)
    assert np.array_equal(slots[:BLOCKS, :BLOCK_BYTES], slots[BLOCKS : 2 * BLOCKS, :BLOCK_BYTES])
    assert np.array_equal(slots[:, BLOCK_BYTES:], tails)
    DEVICE.destroy_stream(stream)
    pool.close()
    assert pool.bytes_pinned == 0
