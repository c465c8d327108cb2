"""A block that a prompt matches in part is lost before it is copied, or is copied too late (hazard H17)."""

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest

from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken, as_it_was
from tests.fixes.test_observing import Counted, observed
from tests.tools.selfcheck.ground import StandInGround
from trtllm_kvfix.fixes.partial_copies.fix import UncopiedMatches
from trtllm_kvfix.hazards.h17_partial_copies.installed import BEGINNING, BLOCKS, T, block_bytes
from trtllm_kvfix.hazards.small import Requests
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.overlay.upstream import RESOURCE_MANAGER

FIX = "partial-copies"
MARK = 7  # what the block of the beginning holds


class Frozen(NamedTuple):
    copy_on_partial_reuse: bool


class Cache(Requests):
    """One with blocks that hold something."""

    def __init__(self, *, host_blocks: int, **more: Any) -> None:
        self.ground = StandInGround()
        self.stream = self.ground.stream()
        if host_blocks:
            more["host_cache_size"] = host_blocks * block_bytes(Requests(self.stream, blocks=BLOCKS).cache)
        super().__init__(self.stream, blocks=BLOCKS, **more)
        self._pool = self.cache.get_unique_primary_pool()
        self._words = self.ground.pinned(self._pool.shape[1:])

    def serve_all_but_the_last(self, others: int) -> None:
        """Two with the same beginning come together; what follows it in the second hangs below the first one's block.
        Then others come, one after the other, and stay."""
        first, twin = self.make(1, [*BEGINNING, 1]), self.make(2, [*BEGINNING, *range(2000, 2000 + T), 2])
        self.step([first, twin])
        self._words.numpy()[...] = MARK
        self.copy(self._block_of(first), self._words)
        for request in (first, twin):
            self.finish(request)
        for at in range(others):
            self.step([self.make(10 + at, range(3000 + at * T, 3000 + at * T + T))])

    def serve_the_last(self) -> Any:
        last = self.make(3, [*BEGINNING[: T // 2], 3, 4])
        self.step([last])
        return last

    def has_what_it_reuses(self, request: Any) -> bool:
        self.copy(self._words, self._block_of(request))
        return bool((self._words.numpy()[..., : request.prepopulated_prompt_len] == MARK).all())

    def copy(self, target: Any, source: Any) -> None:
        with self.ground.on(self.stream):
            target.copy_(source, non_blocking=True)
        self.stream.synchronize()

    def _block_of(self, request: Any) -> Any:
        return self._pool[self.cache.impl.standin_slots(request.request_id)[0]]


def right_with_a_host_tier() -> list[bool]:
    """Whether a request has what it reuses, by how many come before it. At last there is no room for another."""
    found = []
    for others in range(BLOCKS):
        cache = Cache(host_blocks=1)
        cache.serve_all_but_the_last(others)
        found.append(cache.has_what_it_reuses(cache.serve_the_last()))
    return found


def right_where_a_copy_is_late() -> bool:
    """Without a host tier. What moves blocks is held until the request has read its own."""
    cache = Cache(host_blocks=0)
    cache.serve_all_but_the_last(0)
    with cache.ground.held(cache.cache.impl._pools._transfer_stream):
        return cache.has_what_it_reuses(cache.serve_the_last())


def wrong_without_the_fix(right: Callable[[], object], wrong: object, whole: object) -> None:
    assert right() == wrong
    with applied([FIX]):
        assert right() == whole
    assert right() == wrong


@pytest.mark.parametrize("variant", ["B", "B2"])
def test_with_a_host_tier_a_prompt_reads_no_other_block_than_it_matched(variant: str) -> None:
    with standing_in(variant):
        wrong_without_the_fix(right_with_a_host_tier, [True] * 7 + [False, True, True], [True] * BLOCKS)


@pytest.mark.parametrize("variant", ["C", "D", "F"])
def test_builds_that_claim_what_they_match_are_right(variant: str) -> None:
    with standing_in(variant):
        assert right_with_a_host_tier() == [True] * BLOCKS


def test_on_1_1_no_copy_is_made_that_no_step_waits_for() -> None:
    with standing_in("A"):
        wrong_without_the_fix(right_where_a_copy_is_late, False, True)


def test_only_caches_that_may_copy_wrongly_copy_nothing() -> None:
    with standing_in("B"), applied([FIX]):
        for host_blocks, switch, matched in ((0, True, T // 2), (1, True, 0), (0, False, 0)):
            cache = Cache(host_blocks=host_blocks, copy_on_partial_reuse=switch)
            cache.serve_all_but_the_last(0)
            assert cache.serve_the_last().prepopulated_prompt_len == matched


def test_a_manager_of_ours_copies_what_it_matches() -> None:
    with standing_in("B"), applied([FIX]):
        cpp, resources = "KVCacheManagerCpp", sys.modules[RESOURCE_MANAGER]
        with mock.patch.object(resources, cpp, partial(getattr(resources, cpp))):  # as a participant of ours would
            cache = Cache(host_blocks=1)
        cache.serve_all_but_the_last(0)
        assert cache.serve_the_last().prepopulated_prompt_len == T // 2


def test_a_setting_is_given_back_where_a_manager_cannot_be_made() -> None:
    config = SimpleNamespace(copy_on_partial_reuse=True)

    def fail(_: object, kv_cache_config: Any) -> None:
        raise MemoryError(kv_cache_config.copy_on_partial_reuse)

    make = UncopiedMatches(Fuse(FIX), lambda _: True).making(fail)
    with pytest.raises(MemoryError, match="False"):
        make(None, config)
    assert config.copy_on_partial_reuse is True


def test_a_setting_that_cannot_be_changed_ends_no_server() -> None:
    fuse = Fuse(FIX)
    frozen = Frozen(copy_on_partial_reuse=True)
    made: list[Any] = []
    UncopiedMatches(fuse, lambda _: True).making(lambda _, config: made.append(config))(None, frozen)
    assert made == [frozen] and fuse.faults == 1


def test_an_observer_changes_nothing_and_counts_the_caches_that_it_would_change() -> None:
    with standing_in("B"), observed(FIX):
        count = Counted(counters.observed, FIX)
        assert not all(right_with_a_host_tier()) and count() == BLOCKS
        Cache(host_blocks=0)
        Cache(host_blocks=1, enable_partial_reuse=False)
        assert count() == BLOCKS


# ---- for the tests of all fixes (proofs.py) ----

ROOM = "fixes.partial_copies.fix"
BROKEN = Broken(f"{ROOM}.UncopiedMatches.making", as_it_was)


def serve_with_a_host_tier(_: Fault) -> None:
    assert right_with_a_host_tier() == [True] * BLOCKS


PLACES = tuple(Fault(f"{ROOM}.may_copy_wrongly", variant, serve_with_a_host_tier) for variant in ("B", "B2"))
