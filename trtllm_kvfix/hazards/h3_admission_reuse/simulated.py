"""H3 without TensorRT-LLM: a batch of a large request and one that reuses, in the order in which they are admitted, and
a batch of two prompts that is too large for a step."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from trtllm_kvfix.hazards.simulated import require


class _Double(SimpleNamespace):
    """As much of upstream's object as a fix asks for. It is equal to itself alone."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


def _admitted(request_id: int, cached: int) -> _Double:
    def tokens(beam: int) -> list[int]:
        return [beam] * 64

    return _Double(
        py_request_id=request_id,
        prompt_len=64,
        cached=cached,
        is_first_context_chunk=True,
        prepopulated_prompt_len=0,
        get_token=lambda beam, position: tokens(beam)[position],
        get_tokens=tokens,
        get_unique_tokens=tokens,  # where there is no BlockKey to make them
    )


class _Bound:
    enable_block_reuse = True
    is_variable_window = False
    tokens_per_block = 4

    def remove_sequence(self) -> None: ...  # as V1's has

    def find_new_context_block(self, tokens: list[Any], request: _Double) -> Any:
        if len(tokens) <= request.cached:
            return None
        return _Double(unique_tokens=tokens[: request.cached + self.tokens_per_block])


def self_test(main: Any, ordered: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """`main`: the key of the manager that admits."""
    admitted: list[int] = []

    def as_upstream(manager: Any, scheduled_batch: Any) -> None:  # noqa: ARG001
        admitted.extend(request.py_request_id for request in scheduled_batch.context_requests)

    large, reusing = _admitted(1, cached=0), _admitted(2, cached=60)
    batch = _Double(context_requests=[large, reusing])
    manager = _Double(impl=_Bound(), mapping=None, _kv_connector_should_add_sequence=lambda _request: True)
    ordered(as_upstream)(_Double(resource_managers={main: manager}), batch)
    require(admitted == [2, 1], f"requests were admitted in the order {admitted}, expected the one that reuses first")
    require(batch.context_requests == [large, reusing], "the batch did not get its order back")


def _scheduled(tokens: int) -> _Double:
    """A request of a batch whose reuse is known: what is left of its prompt is the chunk that the step computes."""
    return _Double(
        context_remaining_length=tokens,
        context_chunk_size=tokens,
        context_current_position=0,
        py_draft_tokens=(),
        sampling_config=_Double(beam_width=1),
    )


class Fit(Protocol):
    def __call__(self, batch: Any, max_num_tokens: int, *, chunked_prefill: bool) -> int:
        """Cut the batch back, in blocks of 8 tokens. Returns the tokens that are left."""


def self_test_of_the_budget(fit: Fit) -> None:
    for chunked, left, chunk in ((True, 2, 8), (False, 1, 20)):
        first, last, generating = _scheduled(20), _scheduled(20), _scheduled(0)
        batch = _Double(context_requests=[first, last], generation_requests=[generating])
        tokens = fit(batch, 31, chunked_prefill=chunked)
        require(tokens <= 31, f"{tokens} tokens are left of a budget of 31")
        require(len(batch.context_requests) == left, f"{len(batch.context_requests)} requests stayed, expected {left}")
        require(last.context_chunk_size == chunk, f"the last chunk has {last.context_chunk_size} tokens, not {chunk}")
