"""H8 without TensorRT-LLM: a request whose prompt was not computed to its end leaves its blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from trtllm_kvfix.hazards.simulated import require

Around: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class _ReleasedRequest:
    context_remaining_length: int
    is_dummy_request: bool = False
    is_generation_complete_state: bool = True


class _ReleasingManager:
    """Stores whatever it is given, as builds without T#12673."""

    enable_block_reuse = False

    def __init__(self) -> None:
        self.stored: list[_ReleasedRequest] = []
        self.released: list[int] = []

    def store_context_blocks(self, request: _ReleasedRequest) -> None:
        self.stored.append(request)

    def remove_sequence(self, request_id: int, request: _ReleasedRequest, pin: bool) -> None:  # noqa: ARG002  upstream's
        self.released.append(request_id)
        if not request.is_dummy_request:
            self.stored.append(request)


def self_test(storing: Around, releasing: Around) -> None:
    manager = _ReleasingManager()
    store, release = storing(_ReleasingManager.store_context_blocks), releasing(_ReleasingManager.remove_sequence)
    early, whole = _ReleasedRequest(8), _ReleasedRequest(0)
    for request in (early, whole):
        store(manager, request)
        release(manager, 1, request, False)
    require(early not in manager.stored, "blocks that were not computed were offered for reuse")
    require(manager.stored == [whole, whole], "blocks that were computed were not offered")
    require(len(manager.released) == 2 and not early.is_dummy_request, "a release left something behind")
