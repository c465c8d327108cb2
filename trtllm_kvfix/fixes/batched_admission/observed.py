"""Upstream's order, and how much less it reuses than was there before the batch was admitted.

Each rank observes by itself: no rank changes anything, so ranks need not agree.
"""

from collections.abc import Callable
from typing import Any

from trtllm_kvfix.fixes.batched_admission.mechanism import Advice, advice_for, measure
from trtllm_kvfix.fixes.batches import main_v1_manager
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fuse import Fuse


class ObservedAdmission:
    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse

    def looking_on(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `ResourceManager.prepare_resources`."""

        def prepare_resources(resource_manager: Any, scheduled_batch: Any) -> Any:
            advice = self._advice(resource_manager, scheduled_batch)
            try:
                return original(resource_manager, scheduled_batch)
            finally:
                if advice is not None:
                    self._count(advice)

        return prepare_resources

    def _advice(self, resource_manager: Any, batch: Any) -> Advice | None:
        if self._fuse.blown or not batch.context_requests:
            return None
        try:
            manager = main_v1_manager(resource_manager)
            return None if manager is None else advice_for(manager, batch)
        except Exception as error:
            self._fuse.fault(error)
            return None

    def _count(self, advice: Advice) -> None:
        try:
            if advice.changes_order:
                counters.observed.add(1, self._fuse.fix_id)
            measure(advice.scheduled, advice.expected)
        except Exception as error:
            self._fuse.fault(error)
        else:
            self._fuse.in_a_row = 0
