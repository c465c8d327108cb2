"""Sampling: an event behind the step, and tokens that depend on the request alone."""

from dataclasses import dataclass
from typing import Any

from ..._standin import pauses
from ..._standin.tensors import tensors
from .llm_request import FinishReason, append_token

VOCABULARY = 1000


def sampled(request: Any, position: int) -> int:
    return int((request.request_id * 31 + position * 7) % VOCABULARY)


@dataclass
class SampleState:
    scheduled_requests: Any
    sampler_event: Any


class TorchSampler:
    def sample_async(self, scheduled_requests: Any, outputs: Any) -> SampleState:
        del outputs
        event = tensors().event()
        event.record()
        return SampleState(scheduled_requests, event)

    def update_requests(self, state: SampleState) -> None:
        """The host waits here until the device has sampled this batch (surface 10)."""
        pauses.reach(pauses.WAIT_FOR_SAMPLE)
        state.sampler_event.synchronize()
        for request in state.scheduled_requests.all_requests():
            # A context that has chunks left samples nothing; a request that ended is in the next batch once more.
            if request.is_generation_in_progress_state:
                self._append(request)

    def _append(self, request: Any) -> None:
        append_token(request, sampled(request, len(request.output_tokens)))
        if request.max_num_generated_tokens >= request.max_new_tokens:
            request.finish_by_reason(FinishReason.LENGTH)
