"""Windows that hold less than a sequence: prompts take their slots chunk by chunk, and blocks leave behind them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.managers.making import Bench, bench, keywords
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.capacity import scheduler_for
from trtllm_kvfix.managers.keywords import layout_of

FULL, SLIDING, CHUNK = 64, 8, 8
NEEDED = 9  # 2 that it may find in the window, and 7 that the window and two chunks lie in


def small(era_name: str, sliding: int = NEEDED) -> dict[str, Any]:
    """Either build's report about a chunk."""
    said = {"temp_attention_window_inputs": SimpleNamespace(max_num_tokens=CHUNK)}
    return {
        "max_attention_window_vec": [FULL, SLIDING],
        "blocks_per_window": {FULL: (16, 0), SLIDING: (sliding, 0)},
        "num_kv_heads_per_layer": [1, 1],
        **(said if era_name == "S" else {"chunk_size": CHUNK}),
    }


@pytest.fixture(params=["S", "D"])
def narrow(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param, **small(request.param)) as b:
        yield b


def compute_prompt(b: Bench, request: Any, *, late: bool) -> Iterator[list[int]]:
    """Chunk by chunk; the slots of its window in each step. late: a chunk is reported when the next one is prepared."""
    unreported = 0
    while request.context_current_position < request.prompt_len:
        request.context_chunk_size = CHUNK
        b.prepare([request])
        if unreported:
            b.impl.store_context_blocks(request)
            unreported -= 1
        (slots,) = b.impl.get_cache_block_ids(request.request_id, SLIDING)
        end = min(request.context_current_position + CHUNK, request.prompt_len)
        seen = max(0, request.context_current_position + 1 - SLIDING) // 4
        yield slots[seen : -(-end // 4)]
        request.move_to_next_context_chunk()
        unreported += 1
        if not late:
            b.impl.store_context_blocks(request)
            unreported -= 1
    for _ in range(unreported):
        b.impl.store_context_blocks(request)


@pytest.mark.parametrize("late", [False, True])
def test_a_prompt_longer_than_its_window_holds_is_served(narrow: Bench, late: bool) -> None:
    request = narrow.request(1, range(60))
    steps = list(compute_prompt(narrow, request, late=late))
    assert len(steps) == 8
    for slots in steps:
        assert len(set(slots)) == len(slots), "what a step reads and writes lies in slots of its own"
    assert narrow.impl.get_num_front_blocks_removed(1, SLIDING) >= 10
    assert narrow.impl.get_num_front_blocks_removed(1, FULL) == 0
    narrow.impl.remove_sequence(1, None, False)
    assert narrow.impl.get_kv_cache_stats().num_free_blocks_per_window_size == {FULL: 16, SLIDING: NEEDED}


def test_the_answer_slides_on(narrow: Bench) -> None:
    request = narrow.request(1, range(40), max_new_tokens=20)
    list(compute_prompt(narrow, request, late=False))
    request.state = narrow.era.LlmRequestState.GENERATION_IN_PROGRESS
    for token in range(20):
        request.add_new_token(9_000 + token, 0)
        narrow.prepare(generations=[request])
    assert narrow.impl.get_token_count(1) == 60
    assert narrow.impl.get_num_front_blocks_removed(1, SLIDING) == 12


def test_who_comes_later_waits_for_what_is_kept_for_a_prompt(narrow: Bench) -> None:
    """The first holds 4 blocks of its window and 3 are kept: the 2 that are free are nobody else's prompt."""
    scheduler = scheduler_for(8, narrow.impl)
    assert scheduler is not None
    first, second = (narrow.request(n, range(100 * n, 100 * n + length)) for n, length in ((1, 40), (2, 9)))
    assert scheduler.schedule_request([first, second])[0] == [first]
    narrow.prepare([first])
    assert scheduler.schedule_request([first, second])[0] == [first]
    narrow.impl.remove_sequence(1, None, False)
    assert scheduler.schedule_request([second])[0] == [second]


def test_a_dummy_of_a_whole_sequence_has_numbers_in_every_place(narrow: Bench) -> None:
    """Warm-up runs the longest sequence. It is never computed chunk by chunk, and writes into slots of its own."""
    dummy = narrow.request(1, [1] * 60)
    dummy.is_dummy_request = True
    narrow.impl.add_sequence(1, 60, 1, dummy)
    table = np.full((2, 1, 2, 16), -7, np.int32)
    narrow.impl.copy_batch_block_offsets(table, [1], 1, 0)
    (held,) = narrow.impl.core.get_cache_block_ids(1, SLIDING)
    mine = {slot for slot, _ in narrow.impl.core.pin_blocks_by_id([block for block in held if block >= 0])}
    narrow.impl.core.unpin_blocks_by_id([block for block in held if block >= 0])
    assert set((table[0, 0, 0, :15] // 2).tolist()) <= mine
    narrow.impl.add_token(1)
    assert narrow.impl.get_token_count(1) == 61
    narrow.impl.remove_sequence(1, dummy, False)
    assert narrow.impl.get_kv_cache_stats().num_free_blocks_per_window_size == {FULL: 16, SLIDING: NEEDED}


@pytest.mark.parametrize("era_name", ["S", "D"])
def test_a_window_that_cannot_hold_two_chunks_is_refused_by_name(era_name: str) -> None:
    with bench(era_name) as b:
        era = b.era
    layout_of(keywords(era, **small(era_name)))
    with pytest.raises(NotServed, match=r"^blocks_per_window=.*64 tokens needs up to \{64: 16, 8: 9\}.*\{8: 8\}"):
        layout_of(keywords(era, **small(era_name, NEEDED - 1)))


def test_without_a_chunk_a_window_holds_whole_sequences() -> None:
    with bench() as b:
        given = keywords(b.era, **small("D") | {"chunk_size": None})
    with pytest.raises(NotServed, match=r"^blocks_per_window=.*\{64: 16, 8: 16\}"):
        layout_of(given)
