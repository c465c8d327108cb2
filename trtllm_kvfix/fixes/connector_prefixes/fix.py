"""No page of V2 that a connector's prefix passes is offered for reuse without having been written (H8).

A prefix that is longer than a window moves its request past blocks that nobody writes in the group that slides: no step
computes them, and the connector is not told of them. The runtime keeps a page that a window has passed until its block
is committed, and then offers it for reuse. So no such page may be there when the prefix comes:

- V2 asks a connector that answers when it has allocated pages for a chunk. With this fix the pages behind the request's
  own match go back first, and the chunk's are allocated with the prefix, as upstream does where a connector reserves.
- A match may end inside a block, whose page is then a copy that holds a part. Where a connector may serve a request and
  a window may pass that block, the request gets the whole blocks of its match alone.

Where a match ends inside a block nevertheless, an answer that passes it is refused.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.fixes.probe_answers import absent, in_variants, needed, unknown
from trtllm_kvfix.hazards.h8_uncomputed_blocks import simulated as h8
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import Answer, Fix, Replacement, Seam
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.signatures import SELF, takes
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER, V2_PLACES, Upstream

if TYPE_CHECKING:
    from trtllm_kvfix.settings import FixSettings


class FromItsMatch:
    """A cache that gives back what is behind its own match before it grows. If it cannot grow, it is as it was."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def resize(self, capacity: int, history_length: int) -> bool:
        cache = self._cache
        before = cache.capacity
        if not cache.resize(cache.num_committed_tokens):
            return False
        if cache.resize(capacity, history_length):
            return True
        if not cache.resize(before):  # the pages were given back a moment ago, and nobody else allocates
            raise KvfixError(f"a request cannot get back the pages for its {before} tokens")
        return False


class WrittenPages:
    """The replacements. Where their own code fails, a request reuses nothing, and upstream computes what a connector
    answers."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse

    def preparing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `prepare_context_cache(request, reuse_limit)`. Two pools that must match alike come with a limit, and it
        stays as it is."""

        def prepare_context_cache(manager: Any, request: Any, reuse_limit: int | None = None) -> Any:
            if reuse_limit is None and getattr(manager, "kv_connector_manager", None) is not None:
                reuse_limit = self._limit(manager, request)
            return original(manager, request, reuse_limit)

        return prepare_context_cache

    def resizing(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """For `_resize_for_connector_prefix(request, cache, position, end)`. Upstream computes what is refused."""

        def _resize_for_connector_prefix(manager: Any, request: Any, cache: Any, position: int, end: int) -> bool:
            if self._fuse.blown:
                return False
            try:
                passed = first_passed(manager, cache, position)
                is_partial = passed is not None and passed * manager.tokens_per_block < cache.num_committed_tokens
            except Exception as error:
                self._fuse.fault(error)
                return False
            self._fuse.in_a_row = 0
            if is_partial:
                return False
            return original(manager, request, cache if passed is None else FromItsMatch(cache), position, end)

        return _resize_for_connector_prefix

    def _limit(self, manager: Any, request: Any) -> int | None:
        if self._fuse.blown:
            return 0
        try:
            limit = whole_blocks(manager, request)
        except Exception as error:
            self._fuse.fault(error)
            return 0
        self._fuse.in_a_row = 0
        return limit


class ObservedPages:
    """Changes nothing, and counts what the others would."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse

    def preparing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_context_cache(manager: Any, request: Any, reuse_limit: int | None = None) -> Any:
            if reuse_limit is None and getattr(manager, "kv_connector_manager", None) is not None:
                self._count(whole_blocks, manager, request)
            return original(manager, request, reuse_limit)

        return prepare_context_cache

    def resizing(self, original: Callable[..., bool]) -> Callable[..., bool]:
        def _resize_for_connector_prefix(manager: Any, request: Any, cache: Any, position: int, end: int) -> bool:
            self._count(first_passed, manager, cache, position)
            return original(manager, request, cache, position, end)

        return _resize_for_connector_prefix

    def _count(self, what: Callable[..., int | None], *asked: Any) -> None:
        self._fuse.observe(lambda: what(*asked) is not None)


def first_passed(manager: Any, cache: Any, position: int) -> int | None:
    """The first block that is not whole in the request's match, and that a window has passed at this position.

    Upstream asks about requests of which nothing has been computed. Of others no page may go back, so there is none.
    """
    if cache.history_length != cache.num_committed_tokens:
        return None
    not_whole = cache.num_committed_tokens // manager.tokens_per_block
    behind = [(max(begin, not_whole), end) for begin, end in _stale(manager, position)]
    return min((begin for begin, end in behind if begin < end), default=None)


def whole_blocks(manager: Any, request: Any) -> int | None:
    """The tokens in whole blocks of a request's match, where it ends inside a block that a connector's prefix may bring
    a window past. Else None: the match may stay as it is."""
    if not manager._connector_may_serve(request):
        return None
    matched = manager.probe_context_reuse(request)  # None: it has a cache already
    if matched is None or matched % manager.tokens_per_block == 0:
        return None
    partial = matched // manager.tokens_per_block
    furthest = request.prompt_len - 1  # upstream computes the last token of a prompt itself
    if not any(begin <= partial < end for begin, end in _stale(manager, furthest)):
        return None
    return int(partial * manager.tokens_per_block)


def _stale(manager: Any, history: int) -> list[tuple[int, int]]:
    """The blocks that each layer group has no use for any more."""
    return [manager._stale_block_range(group, history) for group in range(len(manager.impl.layer_grouping))]


# ---- when it is needed, and what it replaces ----

ID = "connector-prefixes"
KIND = "KVCacheManagerV2"
RESIZE, PREPARE = f"{KIND}._resize_for_connector_prefix", f"{KIND}.prepare_context_cache"
# What is called, by upstream or by us, and with how many positional arguments.
CALLED = {
    RESIZE: 4,
    PREPARE: 2,
    f"{KIND}.probe_context_reuse": 1,
    f"{KIND}._connector_may_serve": 1,
    f"{KIND}._stale_block_range": 2,
}


def probe(up: Upstream) -> Answer:
    module = up.v2_module
    if not up.has(module, KIND):
        return absent(f"there is no {KIND}")
    if not up.has(module, RESIZE):
        return absent(f"{KIND} takes no prefix of a connector that answers")
    for path, count in CALLED.items():
        if not takes(up, up.attribute(module, path), SELF, *[SELF] * count):
            return unknown(f"{path} is not there, or cannot be called as upstream is known to call it")
    return needed(
        "a connector's prefix may pass pages of a window that nobody has written, and they are reused",
        only_with="a connector",
    )


def replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _by(up, WrittenPages(fuse.of(ID)))


def counting_replacements(up: Upstream, settings: "FixSettings") -> Sequence[Replacement]:  # noqa: ARG001  one interface
    return _by(up, ObservedPages(fuse.of(ID)))


def _by(up: Upstream, pages: WrittenPages | ObservedPages) -> Sequence[Replacement]:
    module = up.v2_module
    if module is None:
        return ()
    place = module.__name__
    return [Replacement(Seam(place, RESIZE), pages.resizing), Replacement(Seam(place, PREPARE), pages.preparing)]


def self_test() -> None:
    pages = WrittenPages(Fuse(ID))
    h8.self_test_of_prefixes(pages.preparing, pages.resizing)


FIX = Fix(
    id=ID,
    hazard="H8",
    title="No page that a connector's prefix passes is reused without having been written",
    upstream=(),
    only_for="V2",
    triggers=(RESOURCE_MANAGER, *V2_PLACES),
    probe=probe,
    replacements=replacements,
    counting_replacements=counting_replacements,
    self_test=self_test,
    expected=in_variants(needed="F", absent="A B B2 C D"),
)
