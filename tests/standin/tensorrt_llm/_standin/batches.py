"""ScheduledRequests, before and after contexts were kept in two lists (surface 5)."""

from typing import Any


class PlainLists:
    def __init__(self) -> None:
        self.context_requests: list[Any] = []
        self.generation_requests: list[Any] = []
        self.paused_requests: list[Any] = []

    @property
    def batch_size(self) -> int:
        return len(self.context_requests) + len(self.generation_requests)

    def all_requests(self) -> list[Any]:
        return self.context_requests + self.generation_requests


class ChunkLists:
    """`context_requests` cannot be assigned; `reset_context_requests` sorts anew after reuse has moved positions."""

    def __init__(self) -> None:
        self.context_requests_chunking: list[Any] = []
        self.context_requests_last_chunk: list[Any] = []
        self.generation_requests: list[Any] = []
        self.paused_requests: list[Any] = []

    @property
    def context_requests(self) -> list[Any]:
        return self.context_requests_chunking + self.context_requests_last_chunk

    def append_context_request(self, request: Any) -> None:
        last = request.is_last_context_chunk
        (self.context_requests_last_chunk if last else self.context_requests_chunking).append(request)

    def append_generation_request(self, request: Any) -> None:
        self.generation_requests.append(request)

    def reset_context_requests(self, context_requests: list[Any] | None = None) -> None:
        requests = self.context_requests if context_requests is None else context_requests
        self.context_requests_chunking = []
        self.context_requests_last_chunk = []
        for request in requests:
            self.append_context_request(request)

    @property
    def num_context_requests(self) -> int:
        return len(self.context_requests)

    @property
    def num_generation_requests(self) -> int:
        return len(self.generation_requests)

    @property
    def batch_size(self) -> int:
        return len(self.context_requests) + len(self.generation_requests)

    def all_requests(self) -> list[Any]:
        return self.context_requests + self.generation_requests


def put_context_requests(batch: Any, requests: list[Any]) -> None:
    """The plain list is assigned, the two lists are sorted anew."""
    if isinstance(batch, ChunkLists):
        batch.reset_context_requests(requests)
    else:
        batch.context_requests = requests
