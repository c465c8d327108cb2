"""Facts about a batch and its managers that the budget and the admission need, in upstream's words."""

from collections.abc import Callable
from typing import Any

MAIN = "KV_CACHE_MANAGER"
IN_TWO_LISTS = ("context_requests_chunking", "context_requests_last_chunk")


class Contexts:
    """The context requests of a batch as they stand, to be put back without a call of upstream's."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        names = IN_TWO_LISTS if hasattr(batch, IN_TWO_LISTS[0]) else ("context_requests",)
        self._lists = {name: list(getattr(batch, name)) for name in names}

    def put_back(self) -> None:
        for name, requests in self._lists.items():
            setattr(self._batch, name, requests)

    def put_back_in_order(self, order: list[Any]) -> None:
        place = {request.py_request_id: at for at, request in enumerate(order)}
        for requests in self._lists.values():
            requests.sort(key=lambda request: place.get(request.py_request_id, len(place)))
        self.put_back()


def managers_by_name(resource_manager: Any) -> dict[str, Any]:
    """Kinds of managers are members of an enumeration, or names."""
    managers = resource_manager.resource_managers
    return {getattr(kind, "name", kind): manager for kind, manager in managers.items()}


def main_v1_manager(resource_manager: Any) -> Any | None:
    """The main KV-cache manager; None where it is V2's, whose scheduler allocates before it charges."""
    manager = managers_by_name(resource_manager).get(MAIN)
    is_v1 = hasattr(getattr(manager, "impl", None), "remove_sequence")  # V2's is another kind of object
    return manager if is_v1 and hasattr(manager, "_kv_connector_should_add_sequence") else None


def enters(manager: Any, request: Any) -> bool:
    """Whether the request gets its blocks in this step: it has none from an earlier step, kept or brought by a load."""
    return bool(request.is_first_context_chunk and manager._kv_connector_should_add_sequence(request))


def context_tokens(request: Any, chunk: int | None = None) -> int:
    """Tokens of the prompt that the forward step computes; drafts follow with the first generation step."""
    return int(min(request.context_chunk_size if chunk is None else chunk, request.context_remaining_length))


def generation_tokens(request: Any, runtime_tokens: Callable[[], int] | None) -> int:
    """Tokens as the engine prepares them. `runtime_tokens` counts for a request whose last sample is still on the
    device: its drafts are taken from there, whatever the request's own list says."""
    if runtime_tokens is not None and not request.is_dummy and request.py_batch_idx is not None:
        return runtime_tokens()
    drafts = 0 if request.py_draft_tokens is None else len(request.py_draft_tokens)
    return 1 + drafts if drafts else int(request.sampling_config.beam_width)


def is_arriving(request: Any) -> bool:
    """Whether the request's prompt is computed elsewhere and its cache is being received: no forward step computes any
    of it yet."""
    return bool(request.is_disagg_generation_init_state)


def cannot_be_split(request: Any) -> bool:
    """Attention may look both ways inside a multimodal span, so a chunk must not end there."""
    return bool(getattr(request, "multimodal_positions", None) or getattr(request, "py_multimodal_data", None))


def line_up(batch: Any, requests: list[Any]) -> None:
    """Make a loop over `context_requests` visit them in this order. Where upstream keeps them in two lists, by whether
    a chunk is the last, the first list holds all of them until they are sorted again."""
    if hasattr(batch, IN_TWO_LISTS[0]):
        batch.context_requests_chunking, batch.context_requests_last_chunk = list(requests), []
    else:
        replace_contexts(batch, requests)


def replace_contexts(batch: Any, requests: list[Any]) -> None:
    """In late versions `context_requests` is computed from two lists and cannot be assigned."""
    if hasattr(batch, "reset_context_requests"):
        batch.reset_context_requests(requests)
    else:
        batch.context_requests = requests
