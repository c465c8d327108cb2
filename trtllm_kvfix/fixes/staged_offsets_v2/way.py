"""Facts that all launches out of a manager's rows share, looked up once."""

from typing import Any

from trtllm_kvfix.staging import OffsetStager
from trtllm_kvfix.staging.stagers import memory_of


class Way:
    """The manager holds it, and it keeps only what the manager keeps: its tensors, and the one that attention reads.

    A launch comes after other work has filled the CPU's caches, so each object that it looks at is read from memory:
    hence these few.
    """

    __slots__ = ("_index_scales", "_input", "_kv_offset", "_output", "_route", "pools", "ship", "stager")

    def __init__(self, stager: OffsetStager, input: Any, output: Any, index_scales: Any, kv_offset: Any) -> None:
        self._input, self._output, self._index_scales, self._kv_offset = input, output, index_scales, kv_offset
        self._route = stager.route(memory_of(output), input)
        self.stager = stager
        self.ship = self._route.ship
        self.pools = int(input.shape[0])

    def is_from(self, input: Any) -> bool:
        return input is self._input

    def leads(self, input: Any, output: Any, index_scales: Any, kv_offset: Any) -> bool:
        return (
            input is self._input
            and output is self._output
            and index_scales is self._index_scales
            and kv_offset is self._kv_offset
            and self._route.is_at_its_place(input)
        )
