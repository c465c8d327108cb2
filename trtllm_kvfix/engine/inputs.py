"""The inputs of a step besides its tables: one persistent pinned buffer, copied whole, and the adapters of its rows.

The buffer is rewritten for each step. Its copy reads it when it executes, so a writer waits for the last copy (fix
`input-copy-fence`, hazard H7). Steps that are replayed find the adapters in a table whose address the graph holds, so
its writer waits for the last replay (fix `graph-inputs`, hazard H9).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtllm_kvfix.engine.batch import StepBatch
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.machine import DeviceMemory, Fence, Machine
from trtllm_kvfix.engine.model import Array

BY_TOKEN = ("tokens", "positions", "rows", "sources")
BY_ROW = ("ends", "seats", "adapters")


class Fields:
    """Names the parts of one buffer of int32."""

    def __init__(self, words: Array, tokens_max: int, rows_max: int) -> None:
        sizes = [tokens_max] * len(BY_TOKEN) + [rows_max] * len(BY_ROW)
        ends = np.cumsum(sizes)
        parts = [words[end - size : end] for size, end in zip(sizes, ends.tolist(), strict=True)]
        self.tokens, self.positions, self.rows, self.sources, self.ends, self.seats, self.adapters = parts


class Inputs:
    def __init__(self, machine: Machine, config: EngineConfig) -> None:
        self._machine = machine
        self._fence = Fence(machine, "the copy of a step's inputs") if config.has("input-copy-fence") else None
        size = (len(BY_TOKEN) * config.tokens_max + len(BY_ROW) * config.requests_max,)
        self._pinned = machine.device.pinned(size, "int32")
        self._memory = DeviceMemory(machine, size)
        self._host = Fields(self._pinned.array, config.tokens_max, config.requests_max)
        self.device = Fields(self._memory.array, config.tokens_max, config.requests_max)

    def ship(self, batch: StepBatch) -> None:
        if self._fence is not None:
            self._fence.wait()
        host, row_end = self._host, 0
        for row, part in enumerate(batch.parts):
            begin, row_end = row_end, row_end + part.tokens
            at = slice(begin, row_end)
            host.tokens[at] = part.known
            host.positions[at] = np.arange(part.begin, part.begin + part.tokens)
            host.rows[at] = row
            host.sources[at] = part.source
            host.ends[row] = row_end - 1
            host.seats[row] = part.seat
            host.adapters[row] = part.request.adapter
        self._machine.copy(self._memory, self._pinned, self._memory.nbytes)
        if self._fence is not None:
            self._fence.record()


class GraphAdapters:
    """Adapters by row, for steps that are replayed. A graph of one copy stands for torch's capture of the same step."""

    def __init__(self, machine: Machine, config: EngineConfig) -> None:
        self._machine = machine
        self._fence = Fence(machine, "the replay of a step") if config.has("graph-inputs") else None
        self._pinned = machine.device.pinned((config.requests_max,), "int32")
        self._memory = DeviceMemory(machine, (config.requests_max,))
        self._host: Any = self._pinned.array
        self.device: Array = self._memory.array
        self._graph = machine.device.capture_copies(
            [self._memory.address], [self._pinned.address], [self._memory.nbytes]
        )

    def write(self, adapters: Sequence[int]) -> None:
        """Write the table, unless it is right already: reading it on the host is harmless."""
        rows = len(adapters)
        if self._host[:rows].tolist() == list(adapters):
            return
        if self._fence is not None:
            self._fence.wait()
        self._host[:rows] = adapters

    def replay(self) -> None:
        self._machine.device.launch_graph(self._graph, self._machine.stream)

    def replayed(self) -> None:
        """The step's graphs have been given to the stream."""
        if self._fence is not None:
            self._fence.record()

    def close(self) -> None:
        self._machine.device.destroy_graph(self._graph)
