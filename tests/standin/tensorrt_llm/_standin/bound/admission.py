"""How sequences get in: one by one until C, then as a batch (surface 4.2, 4.4)."""

from collections.abc import Sequence
from typing import Any

from .core import BoundCore


def add_sequence(self: BoundCore, request_id: int, input_length: int, beam_width: int, llm_request: Any, /) -> None:
    """Claims, onboards and allocates for one request. Its allocations may evict what the next one was to reuse."""
    assert (request_id, input_length) == (llm_request.request_id, llm_request.prompt_len)
    assert beam_width == llm_request.sampling_config.beam_width
    with self._taking_blocks():
        admission = self.native.add_sequence(self._request(llm_request))
    self._run_transfers()
    self._admitted(llm_request, admission)


def add_sequence_batch(
    self: BoundCore, request_infos: Sequence[tuple[int, int, int]], llm_requests: Sequence[Any]
) -> None:
    """Claims for all requests, then onboards and allocates."""
    assert [info[0] for info in request_infos] == [request.request_id for request in llm_requests]
    with self._taking_blocks():
        batch = self.native.add_sequence_batch([self._request(request) for request in llm_requests])
    self._run_transfers()
    for request, admission in zip(llm_requests, batch.admitted, strict=True):
        self._admitted(request, admission)
