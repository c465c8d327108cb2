"""H8 without TensorRT-LLM: a request leaves blocks that it did not compute, or is moved past pages that nobody
writes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
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


@dataclass
class _SlidingCache:
    """Its pages by block, of one group whose window slides. Those that the window passes are kept, as V2 does."""

    capacity: int = 0
    num_committed_tokens: int = 0
    pages: set[int] = field(default_factory=set)

    @property
    def history_length(self) -> int:
        return self.num_committed_tokens

    def resize(self, capacity: int, history_length: int = 0) -> bool:
        blocks, passed = -(-capacity // BLOCK), _passed(history_length)
        self.pages = {at for at in range(blocks) if at in self.pages or at >= passed}
        self.capacity = capacity
        return True


BLOCK, WINDOW = 4, 8


def _passed(position: int) -> int:
    """Blocks in front of the window of the next token."""
    return max(0, position + 1 - WINDOW) // BLOCK


@dataclass
class _MatchingRequest:
    matched: int
    prompt_len: int


class _AnsweredManager:
    """Has pages for a chunk when it asks a connector, as upstream's V2."""

    tokens_per_block = BLOCK
    impl = SimpleNamespace(layer_grouping=[[0]])
    kv_connector_manager = object()

    def _connector_may_serve(self, _request: _MatchingRequest) -> bool:
        return True

    def probe_context_reuse(self, request: _MatchingRequest) -> int:
        return request.matched

    def _stale_block_range(self, _group: int, history_length: int) -> tuple[int, int]:
        return 0, _passed(history_length)

    def prepare(self, request: _MatchingRequest, limit: int | None) -> int:
        return request.matched if limit is None else min(limit, request.matched)

    def resize(self, _request: None, cache: _SlidingCache, position: int, end: int) -> bool:
        return cache.resize(max(cache.capacity, end), position)


def self_test_of_prefixes(preparing: Around, resizing: Around) -> None:
    manager, prepare = _AnsweredManager(), preparing(_AnsweredManager.prepare)
    for matched, prompt_len, kept in ((4, 28, 4), (6, 28, 4), (6, 10, 6)):
        found = prepare(manager, _MatchingRequest(matched, prompt_len), None)
        require(found == kept, "a match was cut, or kept, wrongly")
    resize = resizing(_AnsweredManager.resize)
    for matched, position, is_taken in ((0, 20, True), (4, 20, True), (4, 10, True), (6, 20, False)):
        cache = _SlidingCache(num_committed_tokens=matched)
        cache.resize(24)
        require(resize(manager, None, cache, position, 28) is is_taken, "a prefix was taken, or refused, wrongly")
        unwritten = {at for at in cache.pages if matched // BLOCK <= at < _passed(position)} if is_taken else set()
        require(not unwritten, "pages that nobody writes are kept to be reused")
        require(cache.capacity == (28 if is_taken else 24), "a request has not the pages that it was given")
