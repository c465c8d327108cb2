"""The fence without its waits: counts the steps that were begun while inputs of the last forward step were pending."""

from typing import Any

from trtllm_kvfix.fixes.input_copy_fence.mechanism import ID, InputFence
from trtllm_kvfix.metrics import counters


class ObservedFence(InputFence):
    def wait(self, engine: Any = None) -> None:
        try:
            if not all(mark.done() for mark in self._due(engine)):
                counters.observed.add(1, ID)
        except Exception as error:
            self._tried.fault(error)
        else:
            self._tried.in_a_row = 0

    def fall_back(self) -> None:
        """An observer waits for nothing."""
