"""Sequences get in as a batch from C on (surface 4.2, 4.4)."""

from collections.abc import Sequence
from typing import Any

from ..nanobind import bound
from .core import BoundCore


@bound
def add_sequence_batch(
    self: BoundCore, request_infos: Sequence[tuple[int, int, int]], llm_requests: Sequence[Any]
) -> None:
    """Claims for all requests, then onboards and allocates."""
    assert [info[0] for info in request_infos] == [request.request_id for request in llm_requests]
    living = [info[0] for info in request_infos if info[0] in self._lengths]
    if living:
        raise RuntimeError(f"requests {living} have sequences already")
    with self._taking_blocks():
        batch = self.native.add_sequence_batch([self._request(request) for request in llm_requests])
    self._run_transfers()
    for request, admission in zip(llm_requests, batch.admitted, strict=True):
        self._admitted(request, admission)
