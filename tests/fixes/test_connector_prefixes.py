"""A connector's answer moves a request past pages of V2 that nobody writes (hazard H8). With the fix none is kept.

The runtime is the rig's, which does here as upstream's. Upstream's own manager is between in integration/upstream
(test_answered_connector.py).
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from integration.upstream.v2_pages import LifeCycle, Pool
from integration.upstream.v2_runtime import Runtime
from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import failing
from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.fixes.computed_blocks.fix import resizing
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.upstream import V2_PLACES

FIX, SIZE, WINDOW = "computed-blocks", 4, 8
PROMPT = list(range(40))


class Manager:
    """As much of upstream's as answers reach. It has pages for a chunk when it asks."""

    tokens_per_block = SIZE

    def __init__(self, pages: int = 40) -> None:
        self.runtime = Runtime(SIZE, [LifeCycle(None), LifeCycle(WINDOW)], [Pool(0, pages, 0), Pool(1, pages, 0)])
        self.impl = SimpleNamespace(layer_grouping=self.runtime.layer_grouping)

    def cache(self, chunk: int = 16) -> Any:
        cache = self.runtime.create_kv_cache(None, PROMPT)
        assert cache.resume(0) and cache.resize(cache.num_committed_tokens + chunk)
        return cache

    def resize(self, _request: Any, cache: Any, position: int, end: int) -> bool:
        return bool(cache.resize(max(cache.capacity, end), position))

    def _stale_block_range(self, group: int, history: int) -> tuple[int, int]:
        begin, end = self.runtime.stale(history)[group]
        return begin, end

    def free(self) -> list[int]:
        return [self.runtime.witness_free(group) for group in (0, 1)]


Resize = Callable[..., bool]
FIXED: Resize = resizing(Fuse(FIX), Manager.resize)


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
    resize, manager = resizing(tried, Manager.resize), Manager()
    cache = manager.cache()
    with failing("fixes.computed_blocks.fix.first_passed", always=True) as planted:
        assert [resize(manager, None, cache, 20, 24) for _ in range(5)] == [False] * 5
    assert planted.raised == fuse.IN_A_ROW_MAX and tried.blown
    assert (cache.capacity, cache.history_length) == (16, 0)


def test_it_is_on_where_upstream_has_these_methods_and_calls_them_so() -> None:
    with standing_in("F"):
        kind = import_module(V2_PLACES[0]).KVCacheManagerV2
        add = partial(mock.patch.object, kind, create=True)
        with add("_resize_for_connector_prefix", Manager.resize), add("_stale_block_range", Manager._stale_block_range):
            with applied([FIX]):
                assert kind._resize_for_connector_prefix is not Manager.resize
            assert kind._resize_for_connector_prefix is Manager.resize
            with add("_stale_block_range", lambda _: None), applied([FIX]):
                assert kind._resize_for_connector_prefix is Manager.resize
