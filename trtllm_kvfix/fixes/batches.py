"""What the budget and the admission need to know of a request and a batch, in upstream's words."""

from typing import Any


def draft_tokens(request: Any) -> int:
    """The C++ request and the Python one each keep a list; the longer is what the engine may be given."""
    lists = (getattr(request, "py_draft_tokens", None), getattr(request, "draft_tokens", None))
    return max(len(tokens) if tokens is not None else 0 for tokens in lists)


def context_tokens(request: Any) -> int:
    """What the forward step computes of the prompt, with the drafts that follow its last chunk."""
    chunk = min(request.context_chunk_size, request.context_remaining_length)
    return int(chunk + (draft_tokens(request) if chunk == request.context_remaining_length else 0))


def generation_tokens(request: Any) -> int:
    return int(request.sampling_config.beam_width * (1 + draft_tokens(request)))


def is_arriving(request: Any) -> bool:
    """Its prompt is computed elsewhere and its cache is received: nothing of it is in a forward step yet."""
    return bool(request.is_disagg_generation_init_state)


def cannot_be_split(request: Any) -> bool:
    """Attention may look both ways inside a multimodal span, so a chunk must not end there."""
    return bool(getattr(request, "multimodal_positions", None) or getattr(request, "py_multimodal_data", None))


def line_up(batch: Any, requests: list[Any]) -> None:
    """Have a loop over `context_requests` come by them in this order. Where they are kept in two lists, by whether a
    chunk is the last, the first list has all of them until somebody sorts them again."""
    if hasattr(batch, "context_requests_chunking"):
        batch.context_requests_chunking, batch.context_requests_last_chunk = list(requests), []
    else:
        replace_contexts(batch, requests)


def replace_contexts(batch: Any, requests: list[Any]) -> None:
    """In late versions `context_requests` is computed from two lists and cannot be assigned."""
    if hasattr(batch, "reset_context_requests"):
        batch.reset_context_requests(requests)
    else:
        batch.context_requests = requests
