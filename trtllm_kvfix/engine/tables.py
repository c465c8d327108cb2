"""Block tables: from the cache manager's persistent pinned table to the tensor that attention reads.

Each table has two ways. With the fix, the stager takes the rows over in the call. Upstream's way gives the device
memory that the next step rewrites.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from trtllm_kvfix.engine.cache import Cache
from trtllm_kvfix.engine.config import EngineConfig
from trtllm_kvfix.engine.machine import DeviceMemory, Machine
from trtllm_kvfix.engine.request import Request
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import OffsetStager

WORD_BYTES = 4


class Tables(ABC):
    """`destination` is [1, rows, K or V, blocks]; row i is the batch's i-th request."""

    fix: ClassVar[str]

    def __init__(self, machine: Machine, config: EngineConfig, cache: Cache) -> None:
        self.machine = machine
        self.cache = cache
        self.shape = (1, config.requests_max, 2, cache.blocks_per_sequence)
        self.destination = DeviceMemory(machine, self.shape)
        self.memory = machine.device.pinned(self.shape, "int32")
        self.host: Any = self.memory.array
        self.stager = self._stager(**self._layout()) if config.has(self.fix) else None

    @abstractmethod
    def ship(self, requests: Sequence[Request]) -> None:
        """Ship where the blocks of these requests are now."""

    @abstractmethod
    def _layout(self) -> dict[str, Any]:
        """The layout as the stager takes it."""

    def _stager(self, **layout: Any) -> OffsetStager:
        pools, rows, _, blocks = self.shape
        return OffsetStager(num_pools=pools, rows_max=rows, blocks_max=blocks, device=self.machine.device, **layout)

    def close(self) -> None:
        if self.stager is not None:
            self.stager.close()


class TablesV1(Tables):
    """Each batch is written into the first rows of one table. A copy reads it when it executes: hazard H1."""

    fix = "staged-offsets-v1"

    def _layout(self) -> dict[str, Any]:
        return {"layout": "v1"}

    def ship(self, requests: Sequence[Request]) -> None:
        rows = len(requests)
        self.cache.write_pages(self.host, requests)
        if self.stager is not None:
            self.stager.ship(self.destination.memory, self.host, rows, stream=self.machine.stream)
        else:
            nbytes = rows * self.shape[2] * self.shape[3] * WORD_BYTES
            self.machine.copy(self.destination, self.memory, nbytes)


class TablesV2(Tables):
    """Each request has a row for its life. A kernel reads rows and their numbers when it runs: hazard H2."""

    fix = "staged-offsets-v2"

    def __init__(self, machine: Machine, config: EngineConfig, cache: Cache) -> None:
        if not (config.has(self.fix) or machine.device.has_kernels):
            raise SettingsError(f"{self.fix}=off launches a kernel, and this build has none for {machine.device.name}")
        super().__init__(machine, config, cache)
        self.numbers = machine.device.pinned((config.requests_max,), "int32")

    def _layout(self) -> dict[str, Any]:
        return {"layout": "v2", "index_scales": [self.cache.pages_per_block], "kv_offset": [self.cache.v_offset]}

    def ship(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.cache.write_blocks(self.host[:, request.seat : request.seat + 1], request)
        seats = np.array([request.seat for request in requests], np.int32)
        if self.stager is not None:
            self.stager.ship(self.destination.memory, self.host, seats, stream=self.machine.stream)
            return
        self.numbers.array[: len(seats)] = seats
        self.machine.device.gather_host_rows(
            self.destination.memory, self.memory, self.numbers, len(seats), self.shape[3],
            [self.cache.pages_per_block], [self.cache.v_offset], self.machine.stream,
        )  # fmt: skip


def tables_for(machine: Machine, config: EngineConfig, cache: Cache) -> Tables:
    kind = TablesV1 if config.layout == "v1" else TablesV2
    return kind(machine, config, cache)
