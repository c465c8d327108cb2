"""Admission one by one: who allocates least goes first, and what was lost is counted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.doubles import TOKENS_PER_BLOCK, PlainBatch, Request, SplitBatch, context
from trtllm_kvfix.fixes.batched_admission.mechanism import ordered_admission
from trtllm_kvfix.metrics import counters


def manager(impl: Any = None, *, reuse: bool = True) -> Any:
    return SimpleNamespace(is_draft=False, enable_block_reuse=reuse, tokens_per_block=TOKENS_PER_BLOCK, impl=impl)


def admit(owner: Any, batch: Any, found: Callable[[Request], int] = lambda _: 0) -> list[int]:
    """The order in which upstream's loop came by the requests."""
    seen: list[int] = []

    def prepare_resources(_: Any, scheduled_batch: Any) -> None:
        for request in scheduled_batch.context_requests:
            seen.append(request.request_id)
            request.context_current_position = request.prepopulated_prompt_len = found(request)

    ordered_admission(prepare_resources)(owner, batch)
    return seen


def test_the_request_that_reuses_goes_first_and_the_batch_keeps_its_order() -> None:
    batch = PlainBatch([context(1, 64), context(2, 64, estimated_reusable_tokens=56)])
    assert admit(manager(), batch) == [2, 1]
    assert [request.request_id for request in batch.context_requests] == [1, 2]


def test_a_chunk_that_is_not_the_last_waits_too_where_contexts_are_in_two_lists() -> None:
    long, reusing = context(1, 64, context_chunk_size=32), context(2, 64, estimated_reusable_tokens=56)
    batch = SplitBatch([long, reusing], [])
    assert [request.request_id for request in batch.context_requests] == [1, 2]
    assert admit(manager(), batch) == [2, 1]
    assert (batch.context_requests_chunking, batch.context_requests_last_chunk) == ([long], [reusing])


def test_equals_keep_the_order_of_the_scheduler() -> None:
    assert admit(manager(), PlainBatch([context(number, 16) for number in range(5)])) == [0, 1, 2, 3, 4]


def test_without_reuse_nothing_is_reordered() -> None:
    assert admit(manager(reuse=False), PlainBatch([context(1, 64), context(2, 8)])) == [1, 2]


def test_counted_blocks_come_before_the_estimate() -> None:
    impl = SimpleNamespace(count_reusable_blocks=lambda tokens, *_: 7 if tokens[0] == 2000 else 0)
    batch = PlainBatch([context(1, 64, estimated_reusable_tokens=60), context(2, 64)])
    assert admit(manager(impl), batch) == [2, 1]


@pytest.mark.parametrize("wrapped", [False, True])
def test_where_only_the_first_new_block_is_told_it_is_looked_up_in_the_prompt(wrapped: bool) -> None:
    def find_new_context_block(tokens: list[int], request: Request) -> Any:
        begin = 56 if request.request_id == 2 else 0
        block = tokens[begin : begin + TOKENS_PER_BLOCK]
        return SimpleNamespace(unique_tokens=[SimpleNamespace(token_id=t) for t in block]) if wrapped else block

    impl = SimpleNamespace(find_new_context_block=find_new_context_block)
    assert admit(manager(impl), PlainBatch([context(1, 64), context(2, 64)])) == [2, 1]


def test_a_prompt_that_is_all_there_has_no_new_block() -> None:
    impl = SimpleNamespace(find_new_context_block=lambda tokens, _: None if tokens[0] == 2000 else tokens[:8])
    assert admit(manager(impl), PlainBatch([context(1, 64), context(2, 64)])) == [2, 1]


def test_what_was_reused_and_what_was_lost_is_measured() -> None:
    batch = PlainBatch(
        [context(1, 64, estimated_reusable_tokens=40), context(2, 64), context(3, 64, context_current_position=8)]
    )
    before = counters.read()
    admit(manager(), batch, found=lambda request: {1: 16, 2: 8, 3: 8}[request.request_id])
    after = counters.read()
    assert after["reused_tokens"] - before["reused_tokens"] == 24
    assert after["reuse_lost_tokens"] - before["reuse_lost_tokens"] == 24


def test_requests_that_left_meanwhile_stay_out() -> None:
    batch = PlainBatch([context(1, 64), context(2, 8)])

    def prepare_resources(_: Any, scheduled_batch: Any) -> None:
        scheduled_batch.context_requests = [r for r in scheduled_batch.context_requests if r.request_id != 1]

    ordered_admission(prepare_resources)(manager(), batch)
    assert [request.request_id for request in batch.context_requests] == [2]


def test_the_order_comes_back_when_admission_fails() -> None:
    batch = PlainBatch([context(1, 64), context(2, 8)])

    def prepare_resources(*_: Any) -> None:
        raise MemoryError("no free blocks")

    with pytest.raises(MemoryError):
        ordered_admission(prepare_resources)(manager(), batch)
    assert [request.request_id for request in batch.context_requests] == [1, 2]


def test_a_drafts_manager_is_left_alone() -> None:
    draft = manager()
    draft.is_draft = True
    before = counters.read()
    assert admit(draft, PlainBatch([context(1, 64), context(2, 8)]), lambda _: 8) == [1, 2]
    assert counters.read()["reused_tokens"] == before["reused_tokens"]
