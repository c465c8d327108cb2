"""Requests, batches and managers with no more than the budget and the admission look at."""

from dataclasses import dataclass, field
from typing import Any

TOKENS_PER_BLOCK = 8


@dataclass(frozen=True)
class Sampling:
    beam_width: int = 1


@dataclass(frozen=True)
class UniqueToken:
    token_id: int


@dataclass(eq=False)
class Request:
    request_id: int
    prompt_len: int
    context_chunk_size: int = 0
    context_current_position: int = 0
    prepopulated_prompt_len: int = 0
    py_draft_tokens: list[int] = field(default_factory=list)
    sampling_config: Sampling = Sampling()
    is_disagg_generation_init_state: bool = False
    multimodal_positions: list[int] | None = None
    is_dummy: bool = False
    py_batch_idx: int | None = None

    @property
    def py_request_id(self) -> int:
        return self.request_id

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.context_current_position

    @property
    def is_first_context_chunk(self) -> bool:
        return self.context_current_position == self.prepopulated_prompt_len

    def get_unique_tokens(self, beam: int) -> list[UniqueToken]:
        assert beam == 0
        return [UniqueToken(1000 * self.request_id + position) for position in range(self.prompt_len)]


def context(request_id: int, prompt_len: int, **more: Any) -> Request:
    """A request whose next chunk is the rest of its prompt."""
    request = Request(request_id, prompt_len, **more)
    if "context_chunk_size" not in more:
        request.context_chunk_size = request.context_remaining_length
    return request


def generation(
    request_id: int, *, drafts: int = 0, beams: int = 1, batch_idx: int | None = None, dummy: bool = False
) -> Request:
    return Request(
        request_id,
        1,
        context_current_position=1,
        py_draft_tokens=[0] * drafts,
        sampling_config=Sampling(beams),
        py_batch_idx=batch_idx,
        is_dummy=dummy,
    )


@dataclass
class PlainBatch:
    """A batch from before contexts were kept in two lists."""

    context_requests: list[Request] = field(default_factory=list)
    generation_requests: list[Request] = field(default_factory=list)


class SplitBatch:
    """`context_requests` cannot be assigned."""

    def __init__(self, contexts: list[Request], generations: list[Request]) -> None:
        self.generation_requests = generations
        self.reset_context_requests(contexts)

    @property
    def context_requests(self) -> list[Request]:
        return self.context_requests_chunking + self.context_requests_last_chunk

    def reset_context_requests(self, contexts: list[Request]) -> None:
        self.context_requests_chunking = [r for r in contexts if r.context_chunk_size < r.context_remaining_length]
        self.context_requests_last_chunk = [r for r in contexts if r not in self.context_requests_chunking]
