"""Connectors, routers and conversations ask about blocks by name: hashes, priorities, prefixes."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.bound.making import add, finish_prompt, make_manager, make_request, unique
from tests.managers.making import Bench, bench
from tests.managers.test_retention import config
from trtllm_kvfix import native
from trtllm_kvfix.managers.native_kv_cache import PRIORITY_OF_NOBODY
from trtllm_kvfix.managers.prompts import NotedRetention
from trtllm_kvfix.managers.reports import EventManager, KVCacheStoredData

WINDOW = 64


def hashes(b: Bench, request: Any) -> list[int]:
    return list(b.impl.commit_and_get_block_hashes_for_request(request, WINDOW))


def slots(b: Bench, request_id: int) -> list[int]:
    found: list[int] = b.impl.get_cache_block_ids(request_id, WINDOW)[0]
    return found


def test_the_blocks_of_a_prompt_and_its_answer_are_named_as_events_name_them() -> None:
    events = EventManager(64)
    with bench(event_manager=events) as b:
        request = b.request(1, range(6))
        b.prepare([request])
        assert len(hashes(b, request)) == 1
        b.computed(request, token=50)
        b.prepare(generations=[request])
        request.add_new_token(51, 0)
        named = hashes(b, request)
        assert len(named) == 2
        b.prepare(generations=[request])
        request.add_new_token(52, 0)  # the last one is not stored: nothing has computed it
        b.impl.remove_sequence(1, request, False)
        b.impl.flush_iteration_events()
        stored = [each.data for each in events.get_latest_events(0) if isinstance(each.data, KVCacheStoredData)]
        assert [block.block_hash for data in stored for block in data.blocks][:2] == named[:2]
        other = b.request(2, [*range(6), 50, 52])
        b.prepare([other])
        assert hashes(b, other)[0] == named[0]
        assert hashes(b, other)[1] != named[1], "its fourth token differs"


def test_what_tokens_do_not_name_has_names_that_nobody_else_has() -> None:
    with bench() as b:
        table = object()
        requests = [b.request(n, range(8), prompt_embedding_table=table) for n in (1, 2)]
        b.prepare(requests)
        first, second = (hashes(b, each) for each in requests)
        assert len(first) == len(second) == 2
        assert not set(first) & set(second)


def test_a_live_block_has_the_priority_that_its_request_wants() -> None:
    with bench() as b:
        kept, other = b.request(1, range(8)), b.request(2, range(100, 108))
        kept.py_kvfix_retention = NotedRetention.from_config(config(80))
        b.prepare([kept, other])
        assert [b.impl.get_priority_by_block_id(slot, WINDOW) for slot in slots(b, 1)] == [80, 80]
        (free,) = set(range(5)) - set(slots(b, 1)) - set(slots(b, 2))
        assert b.impl.get_priority_by_block_id(free, WINDOW) == PRIORITY_OF_NOBODY
        mine = slots(b, 2)
        b.impl.remove_sequence(1, kept, False)
        late = b.request(3, range(200, 200 + 4 * 14))
        late.py_kvfix_retention = NotedRetention.from_config(config(7))
        b.prepare([late])
        assert {b.impl.get_priority_by_block_id(slot, WINDOW) for slot in slots(b, 3)} == {7}, "slots have new owners"
        assert {b.impl.get_priority_by_block_id(slot, WINDOW) for slot in mine} == {35}


def test_a_slot_is_what_a_block_is_called_everywhere() -> None:
    with bench() as b:
        b.prepare([b.request(1, range(8))])
        assert b.impl.get_memory_pool_block_indices(slots(b, 1), WINDOW) == slots(b, 1)
        assert b.impl.get_num_front_blocks_removed(1, window_size=WINDOW) == 0


def test_the_rest_of_a_conversation_is_forgotten() -> None:
    with bench() as b:
        b.served(1, range(16))
        b.served(2, range(100, 116))
        b.impl.truncate_blocks(list(range(16)), 8)
        assert b.cached(range(17)) == 8
        assert b.cached(range(100, 117)) == 16, "another conversation"
        b.impl.truncate_blocks(list(range(100, 116)), 99)
        b.impl.truncate_blocks([], 0)
        assert b.cached(range(100, 117)) == 16


def test_what_somebody_uses_is_not_forgotten() -> None:
    with bench() as b:
        b.served(1, range(16))
        b.prepare([b.request(2, range(17))])
        b.impl.truncate_blocks(list(range(16)), 0)
        assert b.cached(range(17)) == 16


@pytest.mark.parametrize(
    "tokens", [range(12), range(13), [*range(8), 90, 91, 92, 93, 94], range(50, 60), [*range(10), 7, 7]]
)
def test_a_router_is_answered_as_upstream_answers_it(tokens: Sequence[int]) -> None:
    """The same history in both: twelve tokens are cached, and a live request holds the first eight."""
    with bench("D") as b:
        bound = make_manager(b.era)
        bound.allocate_pools(False)
        for request_id, prompt in ((1, range(13)), (2, [*range(8), 70, 71])):
            request = make_request(b.era, request_id, prompt)
            bound.sync_transfer_manager_with_buffer_manager()
            add(bound, request)
            bound.refresh_blocks()
            finish_prompt(b.era, request)
            bound.store_context_blocks(request)
            if request_id == 1:
                bound.remove_sequence(1, request, False)
        b.served(1, range(13))
        b.prepare([b.request(2, [*range(8), 70, 71])])
        asker = b.request(0, tokens)
        theirs = bound.analyze_prefix_reuse(unique(b.era, tokens), asker)
        ours = b.impl.analyze_prefix_reuse(unique(b.era, tokens), asker)
        assert ours.reusable_blocks_all == theirs.reusable_blocks_all
        assert ours.reusable_blocks_allocated == theirs.reusable_blocks_allocated
        new = theirs.first_new_block
        last = ours.first_new_block and ours.first_new_block[-b.impl.tokens_per_block :]
        assert last == (None if new is None else tuple(each.token_id for each in new.unique_tokens))


def test_salts_and_adapters_have_prefixes_of_their_own() -> None:
    with bench("D") as b:
        request = b.request(1, range(9), cache_salt_id=5)
        b.prepare([request])
        b.computed(request)
        b.impl.store_context_blocks(request)
        found = [
            b.impl.analyze_prefix_reuse([], b.request(0, range(9), **given)).reusable_blocks_all
            for given in ({}, {"cache_salt_id": 5}, {"cache_salt_id": 5, "lora_task_id": 1})
        ]
        assert found == [0, 2, 0]


def test_hashes_say_what_the_core_says() -> None:
    with bench() as b:
        request = b.request(1, range(12))
        b.prepare([request])
        own = native.block_hashes(native.SequenceRequest(1, list(range(12))), b.impl.core.config)
        assert hashes(b, request) == [each % 2**64 for each in own]
