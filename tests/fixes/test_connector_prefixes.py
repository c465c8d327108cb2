"""A connector's prefix moves a request past pages of V2 that nobody writes (hazard H8). With the fix none is reused.

The runtime is the rig's, which does here as upstream's. Upstream's own manager is between in integration/upstream
(test_answered_connector.py).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from integration.upstream.v2_pages import LifeCycle, Pool
from integration.upstream.v2_runtime import BAD_PAGE, Runtime
from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault, failing
from tests.fixes.proofs import Broken
from tests.fixes.test_observing import Counted, observed
from tests.standin import connector_double
from tests.standin.serving import Server
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.fixes import of
from trtllm_kvfix.fixes.connector_prefixes.fix import WrittenPages
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.upstream import BINDINGS, RESOURCE_MANAGER, V2_PLACES, Upstream

FIX, SIZE, WINDOW = "connector-prefixes", 4, 8
ROOM = "fixes.connector_prefixes.fix"
PROMPT = list(range(40))


class Manager:
    """As much of upstream's as prefixes reach. A connector that answers is asked when there are pages for a chunk."""

    tokens_per_block = SIZE
    kv_connector_manager = object()

    def __init__(self, pages: int = 40) -> None:
        cycles, pools = [LifeCycle(None), LifeCycle(WINDOW)], [Pool(0, pages, 0), Pool(1, pages, 0)]
        self.runtime = Runtime(SIZE, cycles, pools, shares_parts=True)
        self.impl = SimpleNamespace(layer_grouping=self.runtime.layer_grouping)
        self.serves = True

    def cache(self, chunk: int = 16) -> Any:
        cache = self.runtime.create_kv_cache(None, PROMPT)
        assert cache.resume(0) and cache.resize(cache.num_committed_tokens + chunk)
        return cache

    def prepare(self, request: Any, limit: int | None) -> int:
        request.cache = self.runtime.create_kv_cache(None, request.prompt[:-1][:limit])
        assert request.cache.resume(0)
        return int(request.cache.num_committed_tokens)

    def resize(self, _request: Any, cache: Any, position: int, end: int) -> bool:
        return bool(cache.resize(max(cache.capacity, end), position))

    def probe_context_reuse(self, request: Any) -> int | None:
        return None if request.cache else self.runtime.probe_reuse(None, request.prompt[:-1])

    def _connector_may_serve(self, _request: Any) -> bool:
        return self.serves

    def _stale_block_range(self, group: int, history: int) -> tuple[int, int]:
        begin, end = self.runtime.stale(history)[group]
        return begin, end

    def free(self) -> list[int]:
        return [self.runtime.witness_free(group) for group in (0, 1)]


Resize = Callable[..., bool]
FIXED: Resize = WrittenPages(Fuse(FIX)).resizing(Manager.resize)


def computed(manager: Manager, tokens: int) -> None:
    cache = manager.cache(tokens)
    cache.commit(PROMPT[:tokens])
    cache.close()


@pytest.mark.parametrize(("matched", "position"), [(0, 16), (0, 24), (8, 24)])
@pytest.mark.parametrize(("resize", "reused"), [(Manager.resize, "more"), (FIXED, "own")], ids=["upstream", "fixed"])
def test_what_a_prefix_passes_is_reused_or_not(resize: Resize, reused: str, matched: int, position: int) -> None:
    manager = Manager()
    if matched:
        computed(manager, matched)
    cache = manager.cache()
    assert cache.num_committed_tokens == matched
    assert resize(manager, None, cache, position, position + 8)
    assert cache.capacity == max(matched + 16, position + 8) and cache.history_length == position
    cache.commit(PROMPT[matched : position + 8])
    cache.close()
    beginning = matched + SIZE  # nobody has written the window's page of the last of these blocks
    found = len(manager.runtime.match(None, PROMPT[:beginning])) * SIZE
    assert found == (beginning if reused == "more" else matched)
    whole = position + 8
    assert len(manager.runtime.match(None, PROMPT[:whole])) * SIZE == whole, "what was loaded and computed is reused"


def matching(tokens: int, **more: Any) -> mock.Mock:
    """A cache with pages for 16 tokens, of which so many match."""
    return mock.Mock(num_committed_tokens=tokens, history_length=tokens, capacity=16, **more)


def test_of_a_request_that_has_computed_more_than_its_match_no_page_goes_back() -> None:
    manager = Manager()
    cache = manager.cache()
    assert cache.resize(None, 12)
    pages = list(cache.get_aggregated_page_indices(0))
    assert FIXED(manager, None, cache, 20, 24)
    assert list(cache.get_aggregated_page_indices(0))[: len(pages)] == pages


def test_a_prefix_that_finds_no_room_leaves_the_request_as_it_was() -> None:
    manager = Manager(pages=6)
    cache, free = manager.cache(), manager.free()
    assert not FIXED(manager, None, cache, 28, 36)
    assert (cache.capacity, cache.history_length, manager.free()) == (16, 0, free)
    assert FIXED(manager, None, cache, 12, 16)


def test_a_prefix_within_the_window_is_left_to_upstream() -> None:
    manager, cache = Manager(), matching(0)
    assert FIXED(manager, None, cache, 8, 16)
    cache.resize.assert_called_once_with(16, 8)


def test_a_match_that_ends_in_a_block_which_the_window_passes_is_refused() -> None:
    manager, cache = Manager(), matching(6)
    assert not FIXED(manager, None, cache, 20, 24)
    cache.resize.assert_not_called()
    assert FIXED(manager, None, cache, 10, 24), "the window has not passed that block"


def test_pages_that_do_not_come_back_end_the_loop() -> None:
    """Else the step would write where the request has no pages."""
    cache = matching(0, resize=mock.Mock(side_effect=[True, False, False]))
    with pytest.raises(KvfixError, match="for its 16 tokens"):
        FIXED(Manager(), None, cache, 20, 24)


def test_a_cache_that_does_not_shrink_is_left_alone() -> None:
    cache = matching(0, resize=mock.Mock(return_value=False))
    assert not FIXED(Manager(), None, cache, 20, 24)
    cache.resize.assert_called_once_with(0)


def test_where_our_own_code_fails_the_answer_is_refused() -> None:
    tried = Fuse(FIX)
    resize, manager = WrittenPages(tried).resizing(Manager.resize), Manager()
    cache = manager.cache()
    with failing(f"{ROOM}.first_passed", always=True) as planted:
        assert [resize(manager, None, cache, 20, 24) for _ in range(5)] == [False] * 5
    assert planted.raised == fuse.IN_A_ROW_MAX and tried.blown
    assert (cache.capacity, cache.history_length) == (16, 0)


# ---- a match that ends inside a block ----


class Asking:
    """A request that has a prompt, and no cache yet."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt, self.prompt_len = prompt, len(prompt)
        self.cache: Any = None


PREPARED = WrittenPages(Fuse(FIX)).preparing(Manager.prepare)
PREPARES = [(Manager.prepare, 6), (PREPARED, 4)]
ways = pytest.mark.parametrize(("prepare", "matched"), PREPARES, ids=["upstream", "fixed"])


def beginning(tokens: int, length: int = 30) -> Asking:
    """A prompt of which this many tokens are those of PROMPT."""
    return Asking([*PROMPT[:tokens], *range(100 + tokens, 100 + length)])


@ways
@pytest.mark.parametrize("at_once", [False, True], ids=["answered", "reserved"])
def test_a_part_of_a_block_that_a_prefix_passes_is_reused_as_a_whole_one_or_not(
    prepare: Callable[..., int], matched: int, at_once: bool
) -> None:
    """The second of two shares six tokens with the first. The third begins as the second: what the window passed in the
    block where the match had ended was copied from the first, which has other tokens there."""
    manager = Manager()
    computed(manager, 8)
    second = beginning(6)
    assert prepare(manager, second, None) == matched
    if at_once:
        assert second.cache.resize(28, 24)
    else:
        resize = Manager.resize if matched == 6 else FIXED
        assert second.cache.resize(matched + 16) and resize(manager, second, second.cache, 24, 28)
    sliding = list(second.cache.get_aggregated_page_indices(1))
    second.cache.commit(second.prompt[matched:28])
    second.cache.close()
    third = Asking(second.prompt[:9])
    assert (sliding[1] != BAD_PAGE) is (matched == 6)
    assert manager.probe_context_reuse(third) == (8 if matched == 6 else 6), "two tokens that nobody wrote, or none"
    assert manager.probe_context_reuse(Asking([*second.prompt[:29]])) == 28


@pytest.mark.parametrize(
    ("request_", "serves", "found"),
    [(beginning(6, length=14), True, 6), (beginning(6), False, 6), (beginning(8), True, 8), (beginning(3), True, 0)],
    ids=["within-the-window", "not-served", "whole-blocks", "in-the-first-block"],
)
def test_a_match_is_cut_where_a_prefix_may_pass_it_alone(request_: Asking, serves: bool, found: int) -> None:
    manager = Manager()
    computed(manager, 8)
    manager.serves = serves
    request = Asking(request_.prompt)
    assert PREPARED(manager, request, None) == found


def test_two_pools_that_must_match_alike_keep_their_limit() -> None:
    manager = Manager()
    computed(manager, 8)
    assert PREPARED(manager, beginning(6), 5) == 5


def test_without_a_connector_nothing_is_asked() -> None:
    manager = Manager()
    computed(manager, 8)
    unasked = mock.Mock(side_effect=AssertionError)
    with mock.patch.multiple(manager, kv_connector_manager=None, probe_context_reuse=unasked):
        assert PREPARED(manager, beginning(6), None) == 6
    unasked.assert_not_called()


def test_who_has_a_cache_is_left_alone() -> None:
    manager, prepare = Manager(), mock.Mock(return_value=6)
    request = beginning(6)
    request.cache = object()
    assert WrittenPages(Fuse(FIX)).preparing(prepare)(manager, request) == 6
    prepare.assert_called_once_with(manager, request, None)


def test_where_our_own_code_fails_nothing_is_reused() -> None:
    tried, manager = Fuse(FIX), Manager()
    computed(manager, 8)
    prepare = WrittenPages(tried).preparing(Manager.prepare)
    with failing(f"{ROOM}.whole_blocks", always=True) as planted:
        assert [prepare(manager, beginning(6), None) for _ in range(5)] == [0] * 5
    assert planted.raised == fuse.IN_A_ROW_MAX and tried.blown


# ---- a server of the stand-in ----


class Words:
    """What lies in the pages of a server's requests: tokens, with all that come before them. Steps must find theirs."""

    def __init__(self, server: Server) -> None:
        self._manager = server.manager
        self._runtime = server.manager.impl._runtime
        self._at: dict[int, int] = {}
        self._written: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.wrong: list[str] = []
        self.loaded = 0

    def load(self, request: Any, pages: list[list[int]]) -> None:
        """What a connector was told, up to where the request goes on."""
        begin = self._manager.kv_cache_map[request.request_id].num_committed_tokens
        self._at[request.request_id] = request.context_current_position
        self.loaded += request.context_current_position - begin
        self._write(request, pages, begin, request.context_current_position)

    def step(self, request: Any) -> None:
        begin, end = self._at[request.request_id], request.context_current_position
        pages = [self._manager.impl.pages_of(request.request_id, group) for group in range(2)]
        for group, first in ((0, 0), (1, max(0, begin + 1 - WINDOW))):
            for position in range(first, begin):
                key = (group, pages[group][position // SIZE], position % SIZE)
                if self._written.get(key) != tuple(request.get_tokens(0)[: position + 1]):
                    self.wrong.append(f"request {request.request_id} finds another's token {position} in group {group}")
        self._write(request, pages, begin, end)
        self._at[request.request_id] = end

    def _write(self, request: Any, pages: list[list[int]], begin: int, end: int) -> None:
        self._copy()
        for group in range(2):
            for position in range(begin, end):
                page = pages[group][position // SIZE]
                if page != BAD_PAGE:
                    self._written[group, page, position % SIZE] = tuple(request.get_tokens(0)[: position + 1])

    def _copy(self) -> None:
        for _, group, source, target, _ in self._runtime.witness_take_transfers():
            for at in range(SIZE):
                self._written[group, target, at] = self._written.get((group, source, at), ())


@contextmanager
def connected() -> Iterator[tuple[Server, Words]]:
    """A server whose connector has the first 28 tokens of each prompt with an even number."""
    words: list[Words] = []

    class Scheduler(connector_double.Scheduler):  # type: ignore[misc]
        def get_num_new_matched_tokens(self, request: Any, begin: int) -> tuple[int, bool]:
            return (max(0, 28 - begin), False) if request.request_id % 2 == 0 else (0, False)

        def update_state_after_alloc_by_layer_group(self, request: Any, groups: list[list[int]]) -> None:
            words[0].load(request, groups)

        def request_finished_by_layer_group(self, _request: Any, _groups: list[list[int]]) -> bool:
            return False

        def request_reset(self, _request: Any) -> None:
            pass

    class Worker(connector_double.Worker):  # type: ignore[misc]
        def register_kv_cache_layout(self, _layout: Any) -> None:
            pass

    cache = {"use_kv_cache_manager_v2": True, "max_attention_window": [WINDOW, 64]}
    with mock.patch.multiple(connector_double, create=True, Scheduler=Scheduler, Worker=Worker):
        server = Server({"kv_cache_config": cache, "kv_connector_config": connector_double.CONFIG})
        words.append(Words(server))
        commit = server.manager.update_context_resources

        def update(batch: Any) -> None:
            for request in batch.context_requests:
                words[0].step(request)
            commit(batch)

        with mock.patch.object(server.manager, "update_context_resources", update):
            yield server, words[0]
        server.close()


LONG, OTHER = list(range(1000, 1035)), list(range(2000, 2035))


def served() -> tuple[list[str], int]:
    """One request after another: a prefix, who shares its beginning, and the same behind a match of six tokens."""
    prompts = {2: LONG, 3: [*LONG[:8], 1], 5: [*OTHER[:6], 2, 3, 4], 4: OTHER, 7: [*OTHER[:8], 5]}
    with connected() as (server, words):
        for number, prompt in prompts.items():
            (response,) = server.run([server.request(number, prompt)])
            assert not response.error_msg
        return words.wrong, words.loaded


def test_in_a_server_who_shares_a_beginning_reads_what_was_written_with_the_fix_alone() -> None:
    with standing_in("F"):
        control = [f"request {number} finds another's token {at} in group 1" for number, at in PASSED]
        assert served() == (control, 28 + 22)
        with applied([FIX]):
            assert served() == ([], 28 + 24)
        assert served()[0] == control


PASSED = [*((3, at) for at in range(1, 8)), (7, 6), (7, 7)]  # the window of the ninth token begins behind the first


def test_an_observer_changes_nothing_and_counts_what_it_would_change() -> None:
    """The prefix that passes pages, twice, and once the match that would be cut first."""
    with standing_in("F"), observed(FIX):
        count = Counted(counters.observed, FIX)
        assert len(served()[0]) == 9 and count() == 3


# ---- which servers get it ----


def test_a_build_without_the_v1_manager_gets_it() -> None:
    with standing_in("F"):
        resources, bound = sys.modules[RESOURCE_MANAGER], sys.modules[BINDINGS]
        with mock.patch.object(resources, "KVCacheManager", None), mock.patch.object(bound, "KVCacheManager", None):
            assert of("computed-blocks").probe(Upstream()).state is not State.NEEDED
            kind = import_module(V2_PLACES[0]).KVCacheManagerV2
            before = kind._resize_for_connector_prefix
            with applied([FIX]):
                assert kind._resize_for_connector_prefix is not before
            assert kind._resize_for_connector_prefix is before


BROKEN = Broken(f"{ROOM}.first_passed", lambda *_: None)


def serve_prefixes(_: Fault) -> None:
    assert served()[0] == []


# A request comes by `whole_blocks` first. Where that is right, it ends a row of faults.
PLACES = tuple(
    Fault(f"{ROOM}.{name}", "F", serve_prefixes, stands_down=name == "whole_blocks")
    for name in ("first_passed", "whole_blocks", "_stale")
)
