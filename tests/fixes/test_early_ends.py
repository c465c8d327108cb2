"""Requests that end before their prompt has been computed, over a manager that stores and releases on demand."""

from collections.abc import Callable
from typing import Any

import pytest

from trtllm_kvfix.fixes.computed_blocks.fix import ComputedBlocks
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse

FIX = "computed-blocks"


class Request:
    """The request of an upstream that raises where the test says."""

    def __init__(self, remaining: int, raises: Callable[[], bool] = lambda: False) -> None:
        self.remaining, self.raises = remaining, raises
        self.is_dummy_request = False
        self.is_generation_complete_state = True

    @property
    def context_remaining_length(self) -> int:
        if self.raises():
            raise OSError("injected")
        return self.remaining


class Bound:
    def __init__(self) -> None:
        self.enable_block_reuse = False
        self.stored: list[int] = []
        self.sequences = {1, 2}
        self.unpinned: list[Any] = []

    def store_context_blocks(self, request: Request) -> None:
        self.stored.append(request.remaining)

    def remove_sequence(self, request_id: int, request: Request, pin: bool) -> None:
        assert pin is False
        self.sequences.discard(request_id)
        if not request.is_dummy_request:
            self.stored.append(request.remaining)

    def store_blocks_for_reuse(self, request_id: int, request: Request, pin: bool) -> int:
        assert pin
        self.stored.append(request.remaining)
        return request_id + 10

    def unpin_blocks_by_id(self, block_id: Any) -> None:
        self.unpinned.append(block_id)


def mended() -> Bound:
    blocks = ComputedBlocks(fuse.of(FIX))
    body = {
        "store_context_blocks": blocks.storing(Bound.store_context_blocks),
        "remove_sequence": blocks.releasing(Bound.remove_sequence),
        "store_blocks_for_reuse": blocks.saving(Bound.store_blocks_for_reuse),
        "unpin_blocks_by_id": blocks.unpinning(Bound.unpin_blocks_by_id),
    }
    made: Bound = type("Mended", (Bound,), body)()
    return made


def test_a_save_of_a_request_that_ended_early_keeps_its_blocks_until_it_is_over() -> None:
    """Nothing of it enters the tree, and nobody gets its blocks while a connector reads them."""
    bound, early, whole = mended(), Request(8), Request(0)
    held, pinned = bound.store_blocks_for_reuse(1, early, True), bound.store_blocks_for_reuse(2, whole, True)
    bound.remove_sequence(1, early, False)
    bound.remove_sequence(2, whole, False)
    assert bound.sequences == {1} and bound.stored == [0, 0]
    bound.unpin_blocks_by_id(pinned)
    bound.unpin_blocks_by_id(held)
    assert bound.sequences == set() and bound.unpinned == [12] and bound.stored == [0, 0]
    bound.remove_sequence(1, early, False)  # upstream terminates it once more
    assert not early.is_dummy_request


def test_a_release_that_upstream_refuses_raises_and_leaves_the_request_as_it_was() -> None:
    bound, early = mended(), Request(8)
    with pytest.raises(AssertionError):
        bound.remove_sequence(1, early, True)
    assert not early.is_dummy_request and fuse.of(FIX).faults == 0


@pytest.fixture(autouse=True)
def fresh_fuse() -> Any:
    fuse.reset(FIX)
    yield
    fuse.reset(FIX)


@pytest.mark.parametrize("times", [1, 10**9], ids=["once", "always"])
def test_a_fault_of_ours_offers_nothing_and_releases_everything(times: int) -> None:
    left = [times]

    def raises() -> bool:
        left[0] -= 1
        return left[0] >= 0

    bound = mended()
    for request_id in (1, 2):
        request = Request(8, raises)
        for _ in range(3):
            bound.store_context_blocks(request)
        bound.remove_sequence(request_id, request, False)
        assert not request.is_dummy_request
    assert bound.sequences == set() and bound.stored == []
    assert fuse.of(FIX).faults == 1 if times == 1 else fuse.of(FIX).blown


class ReadOnly(Request):
    """A request whose mark cannot be written, and whose state cannot be read."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "is_dummy_request" and value:
            raise OSError("injected")
        super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        if name == "is_generation_complete_state":
            raise OSError("injected")
        return super().__getattribute__(name)


def test_a_request_that_cannot_be_marked_or_read_is_upstreams() -> None:
    bound, request = mended(), ReadOnly(8)
    assert bound.store_blocks_for_reuse(1, request, True) == 11
    bound.remove_sequence(1, request, False)
    assert bound.sequences == {2} and fuse.of(FIX).faults == 2


def test_what_is_held_back_is_counted() -> None:
    before = counters.read()["stores_held_back"]
    bound = mended()
    bound.store_context_blocks(Request(8))
    bound.store_context_blocks(Request(0))
    assert counters.read()["stores_held_back"] - before == 1
