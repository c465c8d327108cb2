"""The object in the place of `.impl`, called as upstream's loops call it."""

import numpy as np
import pytest

from tests.managers.making import bench, keywords
from trtllm_kvfix.errors import NotServed, OutOfBlocks, UnknownRequest
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.metrics import counters


def test_a_prompt_is_found_again_and_the_request_is_told_late() -> None:
    with bench() as b:
        b.served(1, range(10))
        request = b.request(2, range(10))
        b.impl.sync_transfer_manager_with_buffer_manager()
        b.impl.add_sequence(2, 10, 1, request)
        assert request.is_first_context_chunk, "upstream still asks each of the batch whether it is new"
        b.impl.refresh_blocks()
        assert (request.context_current_position, request.context_chunk_size) == (9, 1)


def test_a_chunk_ends_on_a_block_after_reuse_inside_one() -> None:
    with bench() as b:
        b.served(1, range(6))
        request = b.request(2, range(30))
        request.context_chunk_size = 8
        b.prepare([request])
        assert (request.context_current_position, request.context_chunk_size) == (6, 6)


def test_newer_requests_are_told_by_the_call_that_they_have() -> None:
    with bench("D") as b:
        b.served(1, range(10))
        request = b.request(2, range(10))
        b.prepare([request])
        assert request.prepopulated_prompt_len == 9


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_who_reuses_keeps_it_whatever_comes_before_in_the_batch(order: tuple[int, int]) -> None:
    """One by one, the large one first takes the blocks that the other would find."""
    with bench(blocks=12) as b:
        b.served(1, range(24))
        requests = {2: b.request(2, range(24)), 3: b.request(3, range(100, 122))}
        b.prepare([requests[each] for each in order])
        assert b.reused(requests[2]) == 23


def test_growth_comes_behind_admission() -> None:
    """It may evict what the batch is to reuse."""
    with bench(blocks=8) as b:
        growing = b.request(1, range(500, 508))
        b.prepare([growing])
        b.computed(growing)
        b.served(2, range(12))
        b.served(3, range(200, 212))
        again = b.request(4, range(12))
        b.prepare([again], [growing])
        assert b.reused(again) == 11, "the other prompt, though used later, goes first"


def test_chunks_are_stored_when_they_are_reported_not_when_positions_say() -> None:
    """In the overlap loop the next chunk is enqueued, and the position has moved on, before this one is reported."""
    with bench() as b:
        first = b.request(1, range(30))
        first.context_chunk_size = 8
        b.prepare([first])
        first.move_to_next_context_chunk()
        first.context_chunk_size = 8
        b.prepare([first])
        first.move_to_next_context_chunk()
        b.impl.store_context_blocks(first)
        assert first.context_current_position == 16
        assert b.cached(range(30)) == 8
        b.impl.store_context_blocks(first)
        assert b.cached(range(30)) == 16


def test_a_request_that_ends_in_its_prompt_leaves_what_was_reported() -> None:
    with bench() as b:
        first = b.request(1, range(30))
        first.context_chunk_size = 8
        b.prepare([first])
        first.move_to_next_context_chunk()
        b.impl.remove_sequence(1, first, False)
        assert b.cached(range(30)) == 0


def test_a_request_that_ends_before_its_report_leaves_its_prompt() -> None:
    """It has one new token: upstream frees it first and reports it then."""
    with bench() as b:
        b.served(1, range(10))
        assert b.cached(range(11)) == 10


def test_a_generated_answer_is_found_but_for_its_last_token() -> None:
    with bench() as b:
        request = b.request(1, range(10))
        b.prepare([request])
        b.computed(request, 10)
        for token in (11, 12):
            b.prepare([], [request])
            request.add_new_token(token, 0)
        b.impl.remove_sequence(1, request, False)
        assert b.cached(range(20)) == 12


def test_dummies_are_admitted_at_once_find_nothing_and_leave_nothing() -> None:
    with bench(blocks=4) as b:
        b.served(1, [1] * 8)
        dummies = [b.request(number, [1] * 8) for number in (2, 3)]
        for each in dummies:
            each.is_dummy_request = True
            b.impl.add_sequence(each.request_id, 8, 1, each)
        assert b.impl.get_cache_block_ids(2, 64) != b.impl.get_cache_block_ids(3, 64)
        with pytest.raises(OutOfBlocks):
            b.impl.add_token(2)
        for each in dummies:
            b.impl.remove_sequence(each.request_id, each, False)
        assert b.impl.get_kv_cache_stats().free_num_blocks == 4
        assert b.cached([1] * 9) == 0


def test_a_dummy_that_does_not_fit_is_refused_by_the_call_that_adds_it() -> None:
    with bench(blocks=2) as b:
        dummy = b.request(1, [1] * 12)
        dummy.is_dummy_request = True
        with pytest.raises(OutOfBlocks):
            b.impl.add_sequence(1, 12, 1, dummy)
        b.impl.remove_sequence(1, dummy, False)
        b.prepare()


def test_a_step_in_flight_does_not_make_the_last_token_known() -> None:
    """In the overlap loop the next step has its position reserved when the request ends."""
    with bench() as b:
        request = b.request(1, range(10))
        b.prepare([request])
        b.computed(request, 10)
        for _ in range(3):
            b.prepare([], [request])
        b.impl.remove_sequence(1, request, False)
        assert b.cached(range(20)) == 10


def test_lora_and_salt_are_roots_and_tokens_that_name_no_image_are_private() -> None:
    with bench() as b:
        b.served(1, range(10))
        salted = b.request(2, range(10), cache_salt_id=7)
        adapted = b.request(3, range(10), lora_task_id=1)
        b.prepare([salted, adapted])
        assert b.reused(salted) == b.reused(adapted) == 0


def test_pages_are_slots_and_offsets_count_layers() -> None:
    with bench() as b:
        b.prepare([b.request(1, range(10)), b.request(2, range(100, 104))])
        slots = b.impl.get_batch_cache_block_ids([1, 2], 64)
        assert [len(each[0]) for each in slots] == [3, 1]
        table = np.full((2, 4, 2, 16), -7, np.int32)
        b.impl.copy_batch_block_offsets(table, [1, 2], 1, 1)
        for pool, layers in enumerate((1, 2)):
            for row, (own,) in enumerate(slots, start=1):
                keys = [slot * layers * 2 for slot in own]
                assert table[pool, row, 0, : len(own)].tolist() == keys
                assert table[pool, row, 1, : len(own)].tolist() == [key + 1 for key in keys]


def test_memory_is_reported_and_given_back_to_the_byte() -> None:
    with bench(blocks=16, host=4) as b:
        stats = b.impl.get_kv_cache_stats()
        assert stats.allocated_bytes == 16 * (1 * 2 * 64 + 2 * 2 * 128)
        pointers = b.impl.get_block_pool_pointers()
        assert pointers.shape == (2, 2)
        assert (pointers != 0).all()
        layer = b.impl.get_primary_pool_data(2)
        assert layer.shape == (16, 2, 64)
        b.impl.release_pools()
        b.impl.release_pools()
        assert b.impl.get_kv_cache_stats().allocated_bytes == 0


def test_twice_the_same_request_is_refused_and_unknown_ones_are_let_go() -> None:
    with bench() as b:
        request = b.request(1, range(10))
        b.prepare([request])
        with pytest.raises(RuntimeError, match="request 1 was added and not removed"):
            b.impl.add_sequence(1, 10, 1, request)
        b.impl.remove_sequence(1, None, False)
        b.impl.remove_sequence(1, request, False)
        b.impl.store_context_blocks(request)
        b.impl.add_token(1)
        with pytest.raises(UnknownRequest, match="1"):
            b.impl.refresh_blocks()
        b.prepare()


def test_a_request_freed_before_it_was_admitted_takes_nothing() -> None:
    with bench() as b:
        request = b.request(1, range(10))
        b.impl.add_sequence(1, 10, 1, request)
        b.impl.add_token(1)
        b.impl.remove_sequence(1, request, False)
        b.impl.refresh_blocks()
        assert b.impl.get_kv_cache_stats().free_num_blocks == 16


def test_names_that_are_not_served_say_so() -> None:
    with bench() as b:
        with pytest.raises(AttributeError, match="does not serve get_indexer_k_cache_pool"):
            b.impl.get_indexer_k_cache_pool()
        with pytest.raises(NotServed, match="unified memory"):
            b.impl.allocate_pools(True)
        with pytest.raises(NotServed, match="max_beam_width"):
            NativeKvCache(**keywords(b.era, max_beam_width=4))


def test_statistics_can_be_written_and_count_iterations() -> None:
    with bench("D") as b:
        b.served(1, range(10))
        b.prepare([b.request(2, range(10))])
        stats = b.impl.get_kv_cache_stats()
        stats.reused_blocks -= 1
        assert stats.reused_blocks == 2
        iteration = b.impl.get_iteration_stats()[64]
        assert (iteration.iter_reused_blocks, iteration.iter_partial_reused_blocks) == (3, 1)
        assert b.impl.get_token_count(2) == 10


@pytest.mark.parametrize("era", ["S", "D"])
def test_what_outlives_a_reset_is_nobody_elses(era: str) -> None:
    """The weights may have changed: neither what was computed before nor what follows from it is a prefix of others."""
    with bench(era) as b:
        chunked, generating, noted = (b.request(each, range(100 * each, 100 * each + 20)) for each in (1, 2, 3))
        chunked.context_chunk_size = 8
        b.prepare([chunked, generating])
        b.computed(generating)
        b.impl.add_sequence(3, 20, 1, noted)
        b.impl.reset_reuse_state()
        chunked.move_to_next_context_chunk()
        for each in (chunked, generating, noted):
            b.impl.store_context_blocks(each)
        b.impl.store_blocks_for_reuse(2, generating, False)
        for each in (generating, noted, chunked):
            b.impl.remove_sequence(each.request_id, each, False)
            assert b.cached([*range(100 * each.request_id, 100 * each.request_id + 20), 0]) == 0
        b.served(4, range(100, 120))
        assert b.cached([*range(100, 120), 0]) == 20


WITH_HOST = {"blocks_per_window": {64: (16, 4)}}


def test_the_host_tier_takes_evicted_blocks_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench("S", **WITH_HOST) as b:
        assert b.impl.core.config.host_admission == "all"
    monkeypatch.setenv("TRTLLM_KVFIX_NATIVE_HOST_ADMISSION", "adaptive")
    with bench("S", **WITH_HOST) as b:
        assert b.impl.core.config.host_admission == "adaptive"
    with (
        pytest.raises(NotServed, match=r"^kvfix.native_host_admission: adaptive is about a host tier"),
        bench("S"),
    ):
        pass


def test_blocks_that_the_full_host_tier_declined_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_NATIVE_HOST_ADMISSION", "adaptive")
    with bench("S", **WITH_HOST) as b:
        before = counters.read()["native_declined_blocks"]
        for request_id in range(1, 11):  # five prompts come back, and long ones push them out
            b.served(request_id, range(100 * (request_id % 5), 100 * (request_id % 5) + 20))
        for request_id in range(11, 40):
            b.served(request_id, range(100 * request_id, 100 * request_id + 60))
        declined = b.impl.core.get_kv_cache_stats().total.blocks_declined
        assert declined > 0
        for _ in range(2):
            assert counters.read()["native_declined_blocks"] - before == declined
