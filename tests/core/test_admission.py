"""A batch reuses exactly what was promised, and its new tokens never exceed the budget.

The scheduler estimates reuse for a batch. Adding the sequences one by one onboards host blocks, and that evicts other
blocks which the estimate had counted; claiming for the whole batch first cannot.
"""

import random

import pytest

from trtllm_kvfix.native import BlockManager, OutOfBlocks, SequenceRequest

from .scenes import BLOCK, begin, leave_behind, manager, prompt, reusable, run_transfers

SEEDS = 2000


def host_resident_pair() -> tuple[BlockManager, list[SequenceRequest]]:
    """Two prompts of two blocks are in host, which is full; primary is full of something else that wants host room."""
    m = manager(primary=6, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    leave_behind(m, 2, prompt(2, 2 * BLOCK))
    leave_behind(m, 3, prompt(3, 6 * BLOCK))
    requests = [SequenceRequest(family + 10, [*prompt(family, 2 * BLOCK), 7]) for family in (1, 2)]
    reuse = [m.analyze_prefix_reuse(request) for request in requests]
    assert [(each.tokens, each.blocks_host) for each in reuse] == [(2 * BLOCK, 2)] * 2
    return m, requests


def test_one_by_one_the_second_request_gets_less_than_it_was_promised() -> None:
    m, (first, second) = host_resident_pair()
    assert m.add_sequence(first).tokens_reused == 2 * BLOCK
    assert m.add_sequence(second).tokens_reused < 2 * BLOCK


def test_a_batch_gets_all_that_it_was_promised() -> None:
    m, requests = host_resident_pair()
    admitted = m.add_sequence_batch(requests).admitted
    assert [each.tokens_reused for each in admitted] == [2 * BLOCK] * 2
    assert [each.blocks_onboarded for each in admitted] == [2, 2]
    m.check_invariants()


def test_the_budget_holds_with_the_promised_reuse_and_not_one_token_more() -> None:
    m, requests = host_resident_pair()
    assert m.add_sequence_batch(requests, tokens_new_max=1).deferred == [12]
    m, requests = host_resident_pair()
    assert m.add_sequence_batch(requests, tokens_new_max=2).deferred == []


def test_a_block_claimed_by_two_requests_is_onboarded_once() -> None:
    m = manager(primary=6, host=4)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    leave_behind(m, 2, prompt(2, 6 * BLOCK))
    run_transfers(m)
    twins = [SequenceRequest(i, [*prompt(1, 2 * BLOCK), i]) for i in (11, 12)]
    admitted = m.add_sequence_batch(twins).admitted
    assert [each.blocks_onboarded for each in admitted] == [2, 0]
    assert m.get_cache_block_ids(11)[0][:2] == m.get_cache_block_ids(12)[0][:2]


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    m = manager(primary=8)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    admission = m.add_sequence(SequenceRequest(2, prompt(1, 2 * BLOCK)))
    assert (admission.tokens_reused, admission.tokens_new) == (2 * BLOCK - 1, 1)


def test_deferred_requests_leave_no_trace() -> None:
    with_deferred, without = manager(primary=8), manager(primary=8)
    for m in (with_deferred, without):
        leave_behind(m, 1, prompt(1, 2 * BLOCK))
    first = SequenceRequest(2, prompt(2, 5))
    late = SequenceRequest(3, [*prompt(1, 2 * BLOCK), 5])
    answer = with_deferred.add_sequence_batch([first, late], tokens_new_max=5)
    without.add_sequence_batch([first])
    assert answer.deferred == [3]
    assert with_deferred.digest() == without.digest()
    assert reusable(with_deferred, prompt(1, 2 * BLOCK)) == 2 * BLOCK


def test_what_comes_after_the_first_deferred_request_is_deferred_even_if_it_would_fit() -> None:
    m = manager(primary=8)
    batch = [SequenceRequest(i, prompt(i, n)) for i, n in ((1, 4), (2, 9), (3, 1))]
    answer = m.add_sequence_batch(batch, tokens_new_max=8)
    assert [each.request_id for each in answer.admitted] == [1]
    assert answer.deferred == [2, 3]


def test_a_batch_that_does_not_fit_says_how_much_was_missing() -> None:
    m = manager(primary=4)
    begin(m, 1, prompt(1, BLOCK))
    with pytest.raises(OutOfBlocks) as caught:
        m.add_sequence_batch([SequenceRequest(2, prompt(2, 4 * BLOCK))])
    assert (caught.value.blocks_needed, caught.value.blocks_free, caught.value.window_size) == (4, 3, None)
    assert m.add_sequence(SequenceRequest(3, prompt(3, 3 * BLOCK))).blocks_new == 3


def random_prompt(rng: random.Random) -> list[int]:
    """One of few trunks, cut and continued, so that prefixes meet inside blocks too."""
    return [rng.randrange(4)] * rng.randint(1, 14) + [rng.randrange(2) for _ in range(rng.randint(0, 3))]


def fill(m: BlockManager, rng: random.Random) -> None:
    """Sequences come and go until both tiers hold something; some stay."""
    for request_id in range(1, rng.randint(3, 12)):
        try:
            begin(m, request_id, random_prompt(rng))
        except OutOfBlocks:
            continue
        if rng.random() < 0.85:
            m.remove_sequence(request_id)


@pytest.mark.parametrize("windows", [None, [6, 11]])
def test_thousands_of_small_pools_keep_the_promise_and_the_budget(windows: list[int] | None) -> None:
    batches_of_several = short = waited = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        m = manager(rng.randint(3, 12), rng.randint(0, 8), window_sizes=windows, tokens_per_block=rng.randint(1, 4))
        fill(m, rng)
        requests = [SequenceRequest(100 + i, random_prompt(rng)) for i in range(rng.randint(1, 4))]
        promised = [m.analyze_prefix_reuse(request).tokens for request in requests]
        new = [len(r.tokens) - reuse for r, reuse in zip(requests, promised, strict=True)]
        budget = rng.randint(0, sum(new) + 1)
        try:
            answer = m.add_sequence_batch(requests, tokens_new_max=budget)
        except OutOfBlocks:
            continue
        count = len(answer.admitted)
        batches_of_several += count > 1
        lost = False
        for each, promise in zip(answer.admitted, promised, strict=False):
            # Beside others a request may find no room for the source of a copy; alone it has what it was promised.
            whole = promise - promise % m.config.tokens_per_block
            assert each.tokens_reused == promise or (len(requests) > 1 and each.tokens_reused == whole), seed
            lost = lost or each.tokens_reused != promise
        spent = sum(each.tokens_new for each in answer.admitted)
        assert spent <= budget, seed
        if count < len(requests):
            # A request that waits may have lost its promise first, and the first of a batch may have come alone.
            most = new[count] + promised[count] % m.config.tokens_per_block
            assert spent + most > budget or count == 1, seed
            waited += spent + new[count] > budget
        m.check_invariants()
        short += lost
    assert batches_of_several > SEEDS // 20, "the search must search"
    assert waited > SEEDS // 20, "for the budget"
    assert short < SEEDS // 100, "it is the exception"


def test_a_copy_that_has_no_room_is_given_up_and_the_promise_says_so() -> None:
    m = manager(primary=2)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    fork = SequenceRequest(2, [*prompt(1, 2), *prompt(2, BLOCK)])  # its source has a child: a copy
    assert m.analyze_prefix_reuse(fork).tokens == 0, "its two blocks are all there is"
    admission = m.add_sequence(fork)
    assert (admission.tokens_reused, admission.blocks_new) == (0, 2)
    m.check_invariants()
    m = manager(primary=3)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    assert m.analyze_prefix_reuse(fork).tokens == m.add_sequence(fork).tokens_reused == 2


def test_whoever_computes_more_for_want_of_room_waits_where_the_budget_says_so() -> None:
    """The source is kept for the first of two, and the second has no room for its own."""
    m = manager(primary=5)
    leave_behind(m, 1, prompt(1, 2 * BLOCK))
    leave_behind(m, 2, prompt(2, 2 * BLOCK))
    forks = [SequenceRequest(10 + i, [*prompt(i, 2), *prompt(5, BLOCK - 2)]) for i in (1, 2)]
    forks.append(SequenceRequest(13, prompt(6, BLOCK)))
    forks.append(SequenceRequest(14, prompt(7, 1)))
    assert [m.analyze_prefix_reuse(fork).tokens for fork in forks] == [2, 2, 0, 0]
    answer = m.add_sequence_batch(forks, tokens_new_max=9)
    assert ([each.tokens_reused for each in answer.admitted], answer.deferred) == ([2, 0], [13, 14])
    m.check_invariants()


def test_a_batch_of_which_nobody_would_fit_begins_with_its_first() -> None:
    """Beside the second the first has no room for its source, and computes more than the budget has."""
    m = manager(primary=3)
    leave_behind(m, 1, prompt(1, 3 * BLOCK))
    batch = [SequenceRequest(2, [*prompt(1, 3), 7, 8]), SequenceRequest(3, [9])]
    assert [m.analyze_prefix_reuse(each).tokens for each in batch] == [3, 0]
    answer = m.add_sequence_batch(batch, tokens_new_max=3)
    assert ([each.tokens_reused for each in answer.admitted], answer.deferred) == ([3], [3])
