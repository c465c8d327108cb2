"""The runtime below the attack does as upstream's own, where both have been compared (integration/upstream)."""

from array import array
from typing import Any

import pytest

from integration.upstream.v2_pages import LifeCycle, OutOfPages, Pool
from integration.upstream.v2_runtime import BAD_PAGE, Runtime

PROMPT = list(range(40))


def runtime(pages: int = 20, host_pages: int = 0, window: int | None = None) -> Runtime:
    return Runtime(4, [LifeCycle(window)], [Pool(0, pages, host_pages)])


def resumed(books: Runtime, tokens: list[int], capacity: int) -> tuple[Any, memoryview]:
    cache, row = books.create_kv_cache(None, tokens), memoryview(array("i", [7] * 12))
    assert cache.resume(0) and cache.resize(capacity)
    cache.set_base_page_index_buf(0, 0, row)
    return cache, row


def test_of_two_that_commit_a_block_the_second_takes_the_pages_of_the_first() -> None:
    books = runtime()
    (first, row), (second, other) = resumed(books, [], 8), resumed(books, [], 8)
    assert set(row[:2]).isdisjoint(other[:2])
    first.commit(PROMPT[:8])
    second.commit(PROMPT[:8])
    assert list(row) == list(other) and books.witness_free(0) == 18
    second.close()
    assert list(first.get_aggregated_page_indices(0)) == list(row[:2])


def test_a_page_that_the_window_has_passed_is_kept_until_it_is_committed() -> None:
    books = runtime(window=8)
    cache, row = resumed(books, [], 16)
    cache.resize(None, 16)
    assert list(row[:2]) == [BAD_PAGE] * 2 and books.witness_free(0) == 16
    cache.commit(PROMPT[:16])
    assert len(books.match(None, PROMPT[:16])) == 4
    cache.suspend()
    assert cache.resume(0)


def test_who_will_not_commit_keeps_no_page_that_the_window_has_passed() -> None:
    books = runtime(window=8)
    cache, _ = resumed(books, [], 16)
    cache.resize(None, 16)
    cache.stop_committing()
    assert books.witness_free(0) == 18


@pytest.mark.parametrize("at_once", [False, True], ids=["answered", "reserved"])
def test_a_page_that_a_served_prefix_passes_is_shared_though_it_was_never_written(*, at_once: bool) -> None:
    """So it is upstream (docs/hazards/h8-uncomputed-blocks.md), where pages for a chunk are there before a connector is
    asked. Where they are allocated with the prefix, there is none to share."""
    books = runtime(window=8)
    cache, row = resumed(books, [], 0 if at_once else 16)
    assert cache.resize(16, 12)
    told, other = set(row[1:4]), books.pools[0].slots - 4
    assert row[0] == BAD_PAGE and books.witness_free(0) == (other + 1 if at_once else other)
    cache.commit(PROMPT[:16])
    cache.close()
    later = books.create_kv_cache(None, PROMPT[:4])
    assert later.num_committed_tokens == (0 if at_once else 4)
    assert told.isdisjoint(later.get_aggregated_page_indices(0))


def test_a_page_that_a_commit_takes_is_not_dropped_to_make_room_for_it() -> None:
    """It is the oldest of the host tier, and nobody holds it. Else its slot there would be given away twice."""
    books = runtime(pages=2, host_pages=2)
    for tokens in (PROMPT[:4], PROMPT[4:8]):
        other, _ = resumed(books, [], 4)
        other.commit(tokens)
        other.close()
    cache, row = resumed(books, [], 8)
    cache.commit(PROMPT[:4])
    assert sorted(books.pools[0].host_free) == [0, 1] and not books.pools[0].host_idle
    assert len(books.match(None, PROMPT[:4])) == 1 and not books.match(None, PROMPT[4:8])
    assert sorted(row[:2]) == [0, 1]


def test_a_page_of_the_first_that_finds_no_room_any_more_is_an_error() -> None:
    """So it is upstream: the loop that commits ends."""
    books = runtime(pages=4, host_pages=2)
    first, _ = resumed(books, [], 8)
    first.commit(PROMPT[:8])
    first.suspend()
    second, _ = resumed(books, [], 16)  # both pages of the first have left the device
    with pytest.raises(OutOfPages):
        second.commit(PROMPT[:8])
