"""H3 without TensorRT-LLM: a batch of a large request and one that reuses, in the order in which they are admitted, and
a batch of two prompts that is too large for a step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from trtllm_kvfix.hazards.simulated import require


@dataclass(eq=False)
class _AdmittedRequest:
    py_request_id: int
    prompt_len: int
    cached: int
    is_first_context_chunk: bool = True
    prepopulated_prompt_len: int = 0

    def get_token(self, beam: int, position: int) -> int:
        return self.get_tokens(beam)[position]

    def get_tokens(self, beam: int) -> list[int]:
        return [beam] * self.prompt_len

    def get_unique_tokens(self, beam: int) -> list[int]:  # where there is no BlockKey to make them
        return self.get_tokens(beam)


@dataclass
class _Batch:
    context_requests: list[_AdmittedRequest] = field(default_factory=list)


class _Bound:
    enable_block_reuse = True
    is_variable_window = False
    tokens_per_block = 4

    def remove_sequence(self) -> None: ...  # as V1's has

    def find_new_context_block(self, tokens: list[Any], request: _AdmittedRequest) -> Any:
        if len(tokens) <= request.cached:
            return None
        return SimpleNamespace(unique_tokens=tokens[: request.cached + self.tokens_per_block])


class _AdmittingManager:
    impl = _Bound()
    mapping = None

    def _kv_connector_should_add_sequence(self, request: _AdmittedRequest) -> bool:  # noqa: ARG002  upstream's
        return True


class _Managers:
    def __init__(self, main: Any) -> None:
        self.resource_managers = {main: _AdmittingManager()}


def self_test(main: Any, ordered: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """`main`: the key of the manager that admits."""
    admitted: list[int] = []

    def as_upstream(manager: Any, scheduled_batch: Any) -> None:  # noqa: ARG001
        admitted.extend(request.py_request_id for request in scheduled_batch.context_requests)

    large, reusing = _AdmittedRequest(1, 64, 0), _AdmittedRequest(2, 64, 60)
    batch = _Batch([large, reusing])
    ordered(as_upstream)(_Managers(main), batch)
    require(admitted == [2, 1], f"requests were admitted in the order {admitted}, expected the one that reuses first")
    require(batch.context_requests == [large, reusing], "the batch did not get its order back")


@dataclass(frozen=True)
class _Sampling:
    beam_width: int = 1


@dataclass(eq=False)
class _Scheduled:
    """A request of a batch whose reuse is known: what is left of its prompt, and the chunk that the step computes."""

    context_remaining_length: int
    context_chunk_size: int
    context_current_position: int = 0
    py_draft_tokens: tuple[int, ...] = ()
    sampling_config: _Sampling = _Sampling()


@dataclass
class _ScheduledBatch:
    context_requests: list[_Scheduled]
    generation_requests: list[_Scheduled]


class Fit(Protocol):
    def __call__(self, batch: Any, max_num_tokens: int, *, chunked_prefill: bool) -> int:
        """Cut the batch back, in blocks of 8 tokens. Returns the tokens that are left."""


def self_test_of_the_budget(fit: Fit) -> None:
    for chunked, left, chunk in ((True, 2, 8), (False, 1, 20)):
        first, last = _Scheduled(20, 20), _Scheduled(20, 20)
        batch = _ScheduledBatch([first, last], [_Scheduled(0, 0)])
        tokens = fit(batch, 31, chunked_prefill=chunked)
        require(tokens <= 31, f"{tokens} tokens are left of a budget of 31")
        require(len(batch.context_requests) == left, f"{len(batch.context_requests)} requests stayed, expected {left}")
        require(last.context_chunk_size == chunk, f"the last chunk has {last.context_chunk_size} tokens, not {chunk}")
