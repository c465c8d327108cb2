"""A batch that holds too many tokens loses what it must: never more, never into the middle of a block."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixes.doubles import TOKENS_PER_BLOCK, PlainBatch, Request, SplitBatch, context, generation
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken
from tests.standin.admissions import SHARED_LEAF, family, leave_a_leaf
from tests.standin.serving import Server
from trtllm_kvfix.fixes.batches import context_tokens, generation_tokens
from trtllm_kvfix.fixes.token_budget.fix import Limits, Made, Plan, plan
from trtllm_kvfix.fixes.token_budget.fix import batch_tokens as tokens_of


def nobody(_: Any) -> bool:
    return False


Says = Callable[[Any], bool]


def limits_of(budget: int, *, chunked: bool = False) -> Limits:
    return Limits(max_num_tokens=budget, chunked_prefill=chunked, tokens_per_block=TOKENS_PER_BLOCK)


def batch_tokens(batch: Any) -> int:
    return tokens_of(batch, limits_of(0), nobody)


def fitted(batch: Any, budget: int, *, chunked: bool, spared: Says = nobody, stays: Says = nobody) -> Plan:
    """Planned on numbers, which changes nothing, and made."""
    before = [(request, request.context_chunk_size) for request in batch.context_requests]
    what = plan(batch, limits_of(budget, chunked=chunked), spared=spared, stays=stays)
    assert [(request, request.context_chunk_size) for request in batch.context_requests] == before
    if what:
        Made(batch, what)
    return what


def test_a_batch_that_fits_is_left_alone() -> None:
    batch = PlainBatch([context(1, 30)], [generation(2)])
    before = batch.context_requests
    assert fitted(batch, 31, chunked=True) == Plan((), (), 31, 31)
    assert batch.context_requests is before


def test_the_last_chunk_shrinks_to_the_end_of_a_block() -> None:
    first, last = context(1, 20), context(2, 20)
    batch = PlainBatch([first, last])
    assert fitted(batch, 39, chunked=True).chunks == ((last, 16),)
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
    assert result.put_off == (last,) and result.tokens == 20
    assert batch.context_requests == [first]


def test_drafts_of_a_prompt_come_with_its_first_generation_step() -> None:
    """The engine takes a context's tokens from its prompt."""
    batch = PlainBatch([context(1, 24, py_draft_tokens=[0] * 3)])
    assert batch_tokens(batch) == 24 and not fitted(batch, 24, chunked=True)


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (generation(1, drafts=3), 4),
        (generation(1, drafts=0), 1),
        (generation(1, beams=4), 4),
        (generation(1, drafts=0, batch_idx=5), 3),  # an empty list, and the drafts are on the device
        (generation(1, drafts=7, batch_idx=5), 3),  # zeros are left from a step without speculation
        (generation(1, drafts=7, batch_idx=5, dummy=True), 8),
    ],
)
def test_drafts_are_counted_as_the_engine_prepares_them(request_: Request, tokens: int) -> None:
    assert generation_tokens(request_, lambda: 3) == tokens


def test_without_overlap_the_requests_own_drafts_count() -> None:
    assert generation_tokens(generation(1, drafts=7, batch_idx=5), None) == 8


def test_generations_count_their_beams_and_drafts_and_are_never_put_off() -> None:
    batch = PlainBatch([context(1, 10)], [generation(2, drafts=3), generation(3, beams=4)])
    result = fitted(batch, 9, chunked=False)
    assert result.tokens == 8 and len(batch.generation_requests) == 2


def test_without_chunked_prefill_whole_requests_wait_from_the_back() -> None:
    requests = [context(number, 10) for number in range(4)]
    batch = PlainBatch(list(requests))
    assert fitted(batch, 25, chunked=False).put_off == (requests[3], requests[2])
    assert batch.context_requests == requests[:2]


def test_a_request_with_multimodal_spans_is_not_split() -> None:
    first, second = context(1, 20), context(2, 20, multimodal_positions=[3])
    assert fitted(PlainBatch([first, second]), 39, chunked=True).put_off == (second,)


def test_requests_whose_cache_arrives_cost_nothing_and_stay() -> None:
    arriving = context(1, 500, is_disagg_generation_init_state=True)
    batch = PlainBatch([context(2, 20), arriving])
    result = fitted(batch, 20, chunked=True, spared=lambda request: request is arriving)
    assert result == Plan((), (), 20, 20)


def test_a_batch_is_never_emptied() -> None:
    only = context(1, 40)
    batch = PlainBatch([only])
    assert fitted(batch, 20, chunked=False) == Plan((), (), 40, 40)
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
    assert result.tokens == batch_tokens(batch)
    alone = sum(generation_tokens(request, None) for request in running)
    assert result.tokens <= budget or len(batch.context_requests) + len(running) <= 1 or alone > budget
    assert {r.request_id for r in batch.context_requests} | {r.request_id for r in result.put_off} == set(before)
    trimmed = [request for request, _ in result.chunks]
    for request in trimmed:
        assert (request.context_current_position + request.context_chunk_size) % TOKENS_PER_BLOCK == 0
        assert 0 < context_tokens(request) < before[request.request_id]
    assert untouched_prefix(order, [*trimmed, *result.put_off])
    if result:
        last = order[min(order.index(request) for request in (*trimmed, *result.put_off))]
        assert result.tokens - context_tokens_left(batch, last) + before[last.request_id] > budget


def untouched_prefix(order: list[Request], touched: list[Request]) -> bool:
    """Earlier requests keep their place: every request behind a changed one is changed too."""
    changed = [request in touched for request in order]
    return changed == sorted(changed)


def context_tokens_left(batch: Any, request: Request) -> int:
    return context_tokens(request) if request in batch.context_requests else 0


@pytest.mark.parametrize("size", [2, 7, 8, 9])
def test_a_shrunk_chunk_is_always_smaller(size: int) -> None:
    """A prompt that ends with a block has to lose the whole of it."""
    request = context(1, 8 * size)
    fitted(PlainBatch([context(2, 8), request]), 8 + 8 * size - 1, chunked=True)
    assert request.context_chunk_size == 8 * size - 8


def test_a_request_that_must_stay_is_made_smaller_and_another_one_waits() -> None:
    """A connector loads for it in this very step."""
    first, middle, last = (context(number, 20) for number in (1, 2, 3))
    batch = PlainBatch([first, middle, last])
    assert fitted(batch, 45, chunked=False, stays=lambda request: request is last).put_off == (middle,)
    assert fitted(PlainBatch([first, last]), 35, chunked=True, stays=lambda request: request is last).chunks == (
        (last, 8),
    )


@pytest.mark.parametrize("split", [False, True])
def test_a_plan_that_was_made_can_be_taken_back(split: bool) -> None:
    first, middle, last = (context(number, 20) for number in (1, 2, 3))
    batch: Any = SplitBatch([first, middle, last], []) if split else PlainBatch([first, middle, last])
    made = Made(batch, plan(batch, limits_of(30, chunked=True), spared=nobody, stays=nobody))
    assert batch.context_requests != [first, middle, last]
    made.take_back()
    assert batch.context_requests == [first, middle, last]
    assert [request.context_chunk_size for request in batch.context_requests] == [20, 20, 20]


class Stubborn(Request):
    """A chunk that cannot be set, as upstream's outside of the context phase."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "context_chunk_size" and "context_chunk_size" in vars(self) and value < vars(self)[name]:
            raise RuntimeError("not in the context phase")
        super().__setattr__(name, value)


def test_a_plan_that_fails_half_way_changes_nothing() -> None:
    batch = PlainBatch([Stubborn(1, 20, 20), context(2, 20), context(3, 20)])
    what = plan(batch, limits_of(24, chunked=True), spared=nobody, stays=nobody)
    what = Plan(((batch.context_requests[1], 8), (batch.context_requests[0], 8)), what.put_off, 60, 16)
    with pytest.raises(RuntimeError):
        Made(batch, what)
    assert [request.context_chunk_size for request in batch.context_requests] == [20, 20, 20]


# ---- for the tests of all fixes (proofs.py) ----


def unfitted(*_: Any, **__: Any) -> Plan:
    return Plan((), (), 41, 41)


ROOM = "fixes.token_budget"
BROKEN = Broken(f"{ROOM}.fix.plan", unfitted)
ROUNDS = 3


def reuse_what_was_promised(_: Fault) -> None:
    """Two prompts are too long for a batch until their reuse is claimed, so there is a plan, and nothing to do."""
    server = Server({"max_num_tokens": 48})
    server.run([server.request(0, family(0, 40))])
    for number in range(1, ROUNDS + 1):
        pair = [server.request(10 * number + each, family(0, 40) + family(10 * number + each, 4)) for each in (0, 1)]
        responses = server.run(pair)
        assert [len(response.tokens) for response in responses] == [request.max_new_tokens for request in pair]
        assert all(request.prepopulated_prompt_len > 0 for request in pair)
    server.close()


def put_off(_: Fault) -> None:
    """The batch was cut before the fault, so the loop lives."""
    server = Server(SHARED_LEAF)
    requests = leave_a_leaf(server)
    responses = server.serve(requests)
    assert [len(response.tokens) for response in responses] == [request.max_new_tokens for request in requests]


PLACES = (
    *(Fault(f"{ROOM}.fix.{name}", variant, reuse_what_was_promised)
      for variant in ("C", "D", "F") for name in ("Preparation", "enters", "batch_tokens", "Preparation.plan", "plan")),
    *(Fault(f"{ROOM}.fix.{name}", variant, reuse_what_was_promised, at_once=True)  # asked once
      for variant in ("C", "D", "F") for name in ("limits_of", "mapping_of")),
    *(Fault(f"{ROOM}.fix.{name}", variant, put_off, stands_down=False)
      for variant in ("C", "D", "F") for name in ("tell", "_give_back")),
)  # fmt: skip
