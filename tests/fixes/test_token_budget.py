"""What is taken off a batch that holds too many tokens: never more than needed, never into the middle of a block."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixes.doubles import TOKENS_PER_BLOCK, PlainBatch, Request, SplitBatch, context, generation
from trtllm_kvfix.fixes.batches import context_tokens, generation_tokens
from trtllm_kvfix.fixes.token_budget.fitting import Fitted, Limits, batch_tokens, fit


def nobody(_: Any) -> bool:
    return False


def fitted(batch: Any, budget: int, *, chunked: bool, spared: Callable[[Any], bool] = nobody) -> Fitted:
    limits = Limits(max_num_tokens=budget, chunked_prefill=chunked, tokens_per_block=TOKENS_PER_BLOCK)
    return fit(batch, limits, spared=spared)


def test_a_batch_that_fits_is_left_alone() -> None:
    batch = PlainBatch([context(1, 30)], [generation(2)])
    before = batch.context_requests
    assert fitted(batch, 31, chunked=True) == Fitted((), (), 31)
    assert batch.context_requests is before


def test_the_last_chunk_shrinks_to_the_end_of_a_block() -> None:
    first, last = context(1, 20), context(2, 20)
    batch = PlainBatch([first, last])
    assert fitted(batch, 39, chunked=True).trimmed == (last,)
    assert (first.context_chunk_size, last.context_chunk_size) == (20, 16)


def test_a_trimmed_request_is_no_longer_among_the_last_chunks() -> None:
    """Later builds keep two lists, and sample for those in the second."""
    first, last = context(1, 20), context(2, 20)
    batch = SplitBatch([first, last], [])
    fitted(batch, 39, chunked=True)
    assert (batch.context_requests_chunking, batch.context_requests_last_chunk) == ([last], [first])


def test_a_chunk_in_the_middle_of_a_prompt_ends_on_a_block_of_the_prompt() -> None:
    request = context(1, 60, context_current_position=11, context_chunk_size=29)
    assert fitted(PlainBatch([request]), 20, chunked=True).tokens == 13
    assert request.context_current_position + request.context_chunk_size == 24


def test_a_chunk_of_which_nothing_would_be_left_waits() -> None:
    first, last = context(1, 20), context(2, 20)
    batch = PlainBatch([first, last])
    result = fitted(batch, 21, chunked=True)
    assert result.deferred == (last,) and result.tokens == 20
    assert batch.context_requests == [first]


def test_drafts_behind_a_prompt_count_and_go_with_its_end() -> None:
    request = context(1, 24, py_draft_tokens=[0] * 3)
    batch = PlainBatch([request])
    assert batch_tokens(batch, nobody) == 27
    assert fitted(batch, 25, chunked=True).tokens == 16
    assert context_tokens(request) == request.context_chunk_size == 16


def test_generations_count_their_beams_and_drafts_and_are_never_put_off() -> None:
    batch = PlainBatch([context(1, 10)], [generation(2, drafts=3, beams=2), generation(3)])
    result = fitted(batch, 9, chunked=False)
    assert result.tokens == 9 and len(batch.generation_requests) == 2


def test_without_chunked_prefill_whole_requests_wait_from_the_back() -> None:
    requests = [context(number, 10) for number in range(4)]
    batch = PlainBatch(list(requests))
    assert fitted(batch, 25, chunked=False).deferred == (requests[3], requests[2])
    assert batch.context_requests == requests[:2]


def test_a_request_with_multimodal_spans_is_not_split() -> None:
    first, second = context(1, 20), context(2, 20, multimodal_positions=[3])
    assert fitted(PlainBatch([first, second]), 39, chunked=True).deferred == (second,)


def test_requests_whose_cache_arrives_cost_nothing_and_stay() -> None:
    arriving = context(1, 500, is_disagg_generation_init_state=True)
    batch = PlainBatch([context(2, 20), arriving])
    result = fitted(batch, 20, chunked=True, spared=lambda request: request is arriving)
    assert result == Fitted((), (), 20)


def test_a_batch_is_never_emptied() -> None:
    only = context(1, 40)
    batch = PlainBatch([only])
    assert fitted(batch, 20, chunked=False) == Fitted((), (), 40)
    assert batch.context_requests == [only]


@given(
    prompts=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 9), st.integers(0, 4)), max_size=6),
    generations=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=4),
    budget=st.integers(16, 200),
    chunked=st.booleans(),
    split=st.booleans(),
)
def test_what_is_left_fits_and_no_more_was_taken_than_needed(
    prompts: list[tuple[int, int, int]],
    generations: list[tuple[int, int]],
    budget: int,
    chunked: bool,
    split: bool,
) -> None:
    contexts = [
        context(number, length, context_current_position=min(blocks * TOKENS_PER_BLOCK, length - 1))
        for number, (length, blocks, _) in enumerate(prompts)
    ]
    for request, (_, _, drafts) in zip(contexts, prompts, strict=True):
        request.py_draft_tokens = [0] * drafts
    running = [generation(100 + number, drafts=d, beams=b) for number, (d, b) in enumerate(generations)]
    batch: Any = SplitBatch(contexts, running) if split else PlainBatch(list(contexts), list(running))
    before = {request.request_id: context_tokens(request) for request in contexts}
    order = list(batch.context_requests)
    result = fitted(batch, budget, chunked=chunked)
    assert result.tokens == batch_tokens(batch, nobody)
    alone = sum(map(generation_tokens, running))
    assert result.tokens <= budget or len(batch.context_requests) + len(running) <= 1 or alone > budget
    assert {r.request_id for r in batch.context_requests} | {r.request_id for r in result.deferred} == set(before)
    for request in result.trimmed:
        assert (request.context_current_position + request.context_chunk_size) % TOKENS_PER_BLOCK == 0
        assert 0 < context_tokens(request) < before[request.request_id]
    assert untouched_prefix(order, result)
    if result.trimmed or result.deferred:
        last = order[min(order.index(request) for request in (*result.trimmed, *result.deferred))]
        assert result.tokens - context_tokens_left(batch, last) + before[last.request_id] > budget


def untouched_prefix(order: list[Request], result: Fitted) -> bool:
    """Whoever came first keeps its place: everybody behind a changed request is changed too."""
    changed = [request in (*result.trimmed, *result.deferred) for request in order]
    return changed == sorted(changed)


def context_tokens_left(batch: Any, request: Request) -> int:
    return context_tokens(request) if request in batch.context_requests else 0


@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_a_shrunk_chunk_is_always_smaller(size: int) -> None:
    """A prompt that ends with a block would keep its size if its drafts alone were the excess."""
    request = context(1, 8 * size, py_draft_tokens=[0, 0])
    other = context(2, 8)
    fitted(PlainBatch([other, request]), 8 + 8 * size + 1, chunked=True)
    assert request.context_chunk_size < 8 * size or request.context_chunk_size == 8
