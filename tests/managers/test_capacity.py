"""Our scheduler chooses which requests may run next."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.managers.making import Bench, bench
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.capacity import Policy, scheduler_for


def scheduler(b: Bench, at_once: int = 8, adapters: Any = None) -> Policy:
    made = scheduler_for(at_once, b.impl, adapters)
    assert made is not None
    return made


def ids(found: tuple[list[Any], list[Any], list[Any]]) -> list[int]:
    fitting, arriving, paused = found
    assert (arriving, paused) == ([], [])
    return [each.request_id for each in fitting]


def test_a_bound_manager_keeps_its_scheduler_and_other_policies_are_refused() -> None:
    assert scheduler_for(8, object()) is None
    with bench() as b:
        with pytest.raises(NotServed, match="STATIC_BATCH"):
            scheduler_for(8, b.impl, None, SimpleNamespace(name="STATIC_BATCH"))
        with pytest.raises(NotServed, match="two_step_lookahead"):
            scheduler_for(8, b.impl, None, SimpleNamespace(name="GUARANTEED_NO_EVICT"), True)


def test_nobody_starts_whose_last_token_might_not_fit() -> None:
    """8 new tokens each: a prompt of 8 needs 4 blocks."""
    with bench(blocks=9) as b:
        first, second, third = (b.request(n, [100 * n + i for i in range(8)]) for n in (1, 2, 3))
        assert ids(scheduler(b).schedule_request([first, second, third])) == [1, 2]
        b.prepare([first, second])
        assert ids(scheduler(b).schedule_request([first, second, third])) == [1, 2], "2 of them are still to come"
        b.impl.remove_sequence(1, first, False)
        assert ids(scheduler(b).schedule_request([second, third])) == [2, 3]


@pytest.mark.parametrize(("blocks", "fitting"), [(9, [1, 2]), (8, [1])])
def test_what_somebody_holds_is_not_taken_twice(blocks: int, fitting: list[int]) -> None:
    """The first holds 4 blocks and will take 2. Of the 7 of the second these 4 are there already."""
    with bench(blocks=blocks) as b:
        first, second = b.request(1, range(16)), b.request(2, [*range(16), 99])
        b.prepare([first])
        b.computed(first)
        b.impl.store_context_blocks(first)
        assert ids(scheduler(b).schedule_request([first, second])) == fitting
        b.prepare([second], [first])
        for each in (first, second):
            b.impl.remove_sequence(each.request_id, each, False)


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
def test_a_request_of_the_whole_pool_starts_where_a_copy_takes_one_block_more(policy: str) -> None:
    """Its prompt ends inside the eighth block, its answer in the ninth and last. The copy is done by then."""
    with bench(blocks=9) as b:
        b.served(1, range(34))
        request = b.request(2, [*range(13), *range(900, 917)], max_new_tokens=6)
        made = scheduler_for(8, b.impl, None, policy)
        assert made is not None
        assert ids(made.schedule_request([request])) == [2]
        b.prepare([request])
        assert b.reused(request) == 13
        b.computed(request)
        for token in range(5):
            assert ids(made.schedule_request([request])) == [2]
            b.prepare(generations=[request])
            request.add_new_token(8_000 + token, 0)
        b.impl.remove_sequence(2, request, False)


def test_a_small_one_does_not_overtake_a_large_one_for_ever() -> None:
    with bench(blocks=9) as b:
        running, large, small = (b.request(n, [100 * n + i for i in range(size)]) for n, size in
                                 ((1, 8), (2, 20), (3, 4)))  # fmt: skip
        b.prepare([running])
        assert ids(scheduler(b).schedule_request([running, large, small])) == [1]


def test_what_another_computes_is_waited_for_until_it_is_stored() -> None:
    with bench(blocks=40) as b:
        first, same, other = b.request(1, range(16)), b.request(2, range(16)), b.request(3, range(50, 66))
        policy = scheduler(b)
        assert ids(policy.schedule_request([first, same, other])) == [1, 3]
        b.prepare([first, other])
        b.computed(first)
        assert ids(policy.schedule_request([first, same])) == [1], "it has been computed, and not been reported"
        b.impl.store_context_blocks(first)
        assert ids(policy.schedule_request([first, same])) == [1, 2]
        b.prepare([same])
        assert b.reused(same) == 15


def test_newer_schedulers_charge_what_will_surely_be_found() -> None:
    with bench("D") as b:
        b.served(1, range(10))
        request = b.request(2, range(14))
        scheduler(b).schedule_request([request])
        assert request.estimated_reusable_tokens == 8


def test_adapters_take_pages_once() -> None:
    pages = SimpleNamespace(max_device_pages=2, determine_num_pages=lambda _: 1)
    with bench(blocks=80) as b:
        requests = [b.request(n, [100 * n, 1, 2], lora_task_id=task) for n, task in ((1, 7), (2, 7), (3, 8), (4, 9))]
        assert ids(scheduler(b, adapters=pages).schedule_request(requests)) == [1, 2, 3]


def test_copies_that_are_pending_do_not_keep_the_last_from_starting() -> None:
    """Nobody runs, so no step would come to end them. A padding dummy does not count."""
    with bench(blocks=5, host=8) as b:
        padding = b.request(9, [1])
        padding.is_dummy_request = True
        b.impl.add_sequence(9, 1, 1, padding)
        b.served(1, range(16))
        b.served(2, range(100, 116))  # sends the first to the host tier
        back = b.request(3, range(16))
        b.prepare([back])
        assert b.reused(back) == 15
        b.impl.remove_sequence(3, back, False)
        assert b.impl.get_kv_cache_stats().free_num_blocks == 4
        assert ids(scheduler(b).schedule_request([b.request(4, range(200, 208))])) == [4]


def by_utilization(b: Bench, at_once: int = 8) -> Any:
    return scheduler_for(at_once, b.impl, None, SimpleNamespace(name="MAX_UTILIZATION"))


def fitting_and_paused(policy: Any, active: list[Any]) -> tuple[list[int], list[int]]:
    fitting, arriving, paused = policy.schedule_request(active)
    assert arriving == []
    return [each.request_id for each in fitting], [each.request_id for each in paused]


def test_the_newest_is_paused_when_the_next_tokens_do_not_fit() -> None:
    """Prompts of 8 take 2 blocks each of 7, and their 9th tokens one more each."""
    with bench(blocks=7) as b:
        requests = [b.request(n, [100 * n + i for i in range(8)]) for n in (1, 2, 3)]
        policy = by_utilization(b)
        assert fitting_and_paused(policy, requests) == ([1, 2], []), "the third would leave no block to spare"
        b.prepare(requests)
        for each in requests:
            b.computed(each)
        assert fitting_and_paused(policy, requests) == ([1, 2], [3])
        b.impl.remove_sequence(3, requests[2], False)
        b.prepare([], requests[:2])
        assert fitting_and_paused(policy, requests[:2]) == ([1, 2], [])


def test_who_was_paused_comes_back_and_finds_what_it_computed() -> None:
    with bench(blocks=12) as b:
        first, second = (b.request(n, [100 * n + i for i in range(8)]) for n in (1, 2))
        b.prepare([first, second])
        for each in (first, second):
            b.computed(each)
        b.prepare([], [first, second])
        second.add_new_token(7, 0)
        b.impl.remove_sequence(2, second, False)
        second.pause(64)
        assert second.is_context_init_state
        policy = by_utilization(b)
        assert fitting_and_paused(policy, [first, second]) == ([1, 2], [])
        b.prepare([second], [first])
        assert b.reused(second) == 9, "all but its last token"


def test_one_alone_runs_to_the_last_block() -> None:
    with bench(blocks=3) as b:
        alone = b.request(1, range(8))
        policy = by_utilization(b)
        assert fitting_and_paused(policy, [alone]) == ([1], [])
        b.prepare([alone])
        b.computed(alone)
        assert fitting_and_paused(policy, [alone]) == ([1], [])
        b.prepare([], [alone])


def test_a_prompt_in_chunks_needs_no_more_blocks() -> None:
    with bench(blocks=4) as b:
        request = b.request(1, range(16))
        request.context_chunk_size = 8
        b.prepare([request])
        request.move_to_next_context_chunk()
        assert fitting_and_paused(by_utilization(b), [request]) == ([1], [])
