"""A stream of the simulated device, and what a fix ships on it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from trtllm_kvfix import native
from trtllm_kvfix.hazards.ground import held
from trtllm_kvfix.hazards.simulated import Array, DeviceTensor, HostTensor
from trtllm_kvfix.staging import on_stream

POOLS, ROWS, PLANES, BLOCKS = SHAPE = (2, 4, 2, 8)


class Bench:
    """A stream that can be held, a live table and a destination."""

    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self.stream = self.device.create_stream()
        self.table = self.pinned(SHAPE)
        self.output = DeviceTensor(self.device.empty(SHAPE, "int32"))

    def pinned(self, shape: tuple[int, ...]) -> HostTensor:
        memory = self.device.pinned(shape, "int32")
        return HostTensor(self.device, memory, memory.array)

    def write(self, seed: int) -> Array:
        """Replace the table's contents; returns a copy of them."""
        contents = np.random.default_rng(seed).integers(1, 1000, SHAPE, np.int32)
        self.table.numpy()[...] = contents
        return contents

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the work that is enqueued inside until the block ends, and finish it before the block is left."""
        with held(self.device, self.stream), on_stream(self.device, self.stream):
            yield
        self.device.synchronize(self.stream)

    def arrived(self) -> Array:
        return self.device.download(self.output.memory, self.stream)
