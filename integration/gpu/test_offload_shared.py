"""A host pool whose pages another process may map, as the remote tier needs it: pinned and copied like any other."""

import mmap

import numpy as np
import pytest

from trtllm_kvfix.native import Device, DeviceError, HostPool, open_device

try:
    DEVICE: Device | None = open_device("cuda")
    WHY_NOT = ""
except DeviceError as error:
    DEVICE, WHY_NOT = None, str(error)

pytestmark = pytest.mark.skipif(DEVICE is None, reason=f"no CUDA device: {WHY_NOT}")
BLOCK_BYTES, BLOCKS = 1 << 20, 64


def test_the_device_and_another_mapping_see_the_same_pages() -> None:
    assert DEVICE is not None
    pool = HostPool(DEVICE, host_bytes=2 * BLOCKS * BLOCK_BYTES, block_bytes=BLOCK_BYTES, shared=True)
    assert pool.bytes_pinned == pool.bytes
    pages = np.frombuffer(mmap.mmap(pool.descriptor, pool.bytes), np.uint8)
    pages[: BLOCKS * BLOCK_BYTES] = np.random.default_rng(1).integers(0, 256, BLOCKS * BLOCK_BYTES, np.uint8)
    stream, memory = DEVICE.create_stream(), DEVICE.empty((BLOCKS, BLOCK_BYTES), "uint8")
    steps = np.arange(BLOCKS, dtype=np.uint64) * np.uint64(BLOCK_BYTES)
    sizes = np.full(BLOCKS, BLOCK_BYTES, np.uint64)
    there, here = np.uint64(memory.address) + steps, np.uint64(pool.address) + steps
    DEVICE.copy_batch(there, here, sizes, "any", stream)
    DEVICE.copy_batch(here + np.uint64(BLOCKS * BLOCK_BYTES), there, sizes, "stream", stream)
    DEVICE.synchronize(stream)
    assert np.array_equal(pages[: BLOCKS * BLOCK_BYTES], pages[BLOCKS * BLOCK_BYTES :])
    DEVICE.destroy_stream(stream)
    pool.close()
    assert pool.bytes_pinned == 0
