"""A workload that several processes read in place: its arrays lie in memory that all of them map."""

import pickle
from itertools import accumulate
from multiprocessing.context import BaseContext

from trtllm_kvfix.tools.replay.engine import Workload

_ALIGNMENT = 16  # bytes; numpy is slow where an array is not aligned


class SharedWorkload:
    """Given to a process when that is started, which is when it can take the memory over."""

    def __init__(self, context: BaseContext, workload: Workload) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(workload, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        self._sizes = [view.nbytes for view in views]
        self._memory = context.RawArray("B", max(self._starts()[-1], 1))
        memory = memoryview(self._memory).cast("B")
        for start, view in zip(self._starts(), views, strict=False):
            memory[start : start + view.nbytes] = view

    def load(self) -> Workload:
        memory = memoryview(self._memory).cast("B")
        parts = (memory[start : start + size] for start, size in zip(self._starts(), self._sizes, strict=False))
        workload: Workload = pickle.loads(self._pickled, buffers=parts)
        return workload

    def _starts(self) -> list[int]:
        """Offsets at which the arrays start, and at which the last one ends."""
        return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes), initial=0))
