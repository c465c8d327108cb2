"""Requests go through turns, chunks, preemption and cancellation; some of them share blocks."""

from collections.abc import Collection
from typing import Any

import pytest

from trtllm_kvfix.blocks.identity import identity_of
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import StoreJob

from .conftest import Bench, MakeBench
from .ends import jobs
from .faults import transfers_of
from .upstream_double import Request, RequestData, SchedulerOutput, State


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


def finish(bench: Bench) -> None:
    bench.executor.run()
    bench.settle()  # the load of a request that was cancelled may outlive it
    assert bench.executor.corrupt == []
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0
    assert len(bench.scheduler.side._sources) == 0


def loaded_by(bench: Bench, *requests: Request) -> int:
    bench.executor.forget_device_cache()
    before = bench.executor.loaded_tokens
    bench.executor.submit(*requests)
    finish(bench)
    return bench.executor.loaded_tokens - before


def test_each_turn_of_a_conversation_finds_all_before_it(make_bench: MakeBench) -> None:
    bench, tokens = make_bench(), prompt(1, 9)
    for turn in range(1, 7):
        request = Request(turn, list(tokens), max_new_tokens=5)
        whole_before = (len(tokens) - 5) // 4 * 4 if turn > 1 else 0
        # Nothing was computed for the answer's last token; the new turn brings four tokens of its own.
        assert loaded_by(bench, request) == whole_before
        tokens = [*request.tokens, *range(turn, turn + 4)]


def test_a_prompt_in_chunks_is_stored_chunk_by_chunk(make_bench: MakeBench) -> None:
    bench = make_bench(executor={"chunk_tokens": 8})
    bench.executor.submit(Request(1, prompt(1, 40), max_new_tokens=2))
    stored = []
    while bench.executor.waiting or bench.executor.active:
        bench.executor.step()
        stored.append(sum(len(job.blocks) for job in jobs(bench.scheduler.side.ledger, StoreJob)))
    assert stored[1] > 0, "before the prompt has been computed to its end"
    finish(bench)
    assert loaded_by(bench, Request(2, prompt(1, 40))) == 36


def test_two_requests_with_one_prompt_send_it_once(make_bench: MakeBench) -> None:
    bench, before = make_bench(), counters.offload_stored_blocks.value
    bench.executor.submit(*(Request(number, prompt(1), max_new_tokens=2) for number in range(1, 5)))
    finish(bench)
    assert counters.offload_stored_blocks.value - before == 6


def test_what_the_device_has_is_not_loaded(make_bench: MakeBench) -> None:
    bench = make_bench()
    assert loaded_by(bench, Request(1, prompt(1, 25))) == 0
    bench.executor.submit(Request(2, prompt(1, 25)))
    finish(bench)
    assert bench.executor.loaded_tokens == 0


@pytest.mark.parametrize("blocks_min", [5, 6])
def test_a_prefix_of_too_few_blocks_is_computed(blocks_min: int, make_bench: MakeBench) -> None:
    bench = make_bench(min_reuse_blocks=blocks_min)
    loaded_by(bench, Request(1, prompt(1)))
    assert loaded_by(bench, Request(2, prompt(1))) == (20 if blocks_min == 5 else 0)


def test_a_full_host_tier_makes_room_and_a_busy_one_stores_nothing(make_bench: MakeBench) -> None:
    bench, dropped = make_bench(host_blocks=12), counters.offload_dropped_blocks.value
    for number in range(1, 6):
        loaded_by(bench, Request(number, prompt(number)))
    assert loaded_by(bench, Request(10, prompt(5))) == 20
    assert loaded_by(bench, Request(11, prompt(1))) == 0
    assert counters.offload_dropped_blocks.value == dropped
    loaded_by(bench, Request(12, prompt(12, 60)))
    assert counters.offload_dropped_blocks.value > dropped


def opened_when_waited_for(bench: Bench, gate: Any) -> list[int]:
    """The gate is opened when a job is waited for, since the step would not come back; which jobs those are."""
    transfers = transfers_of(bench)
    wait_for, opened = transfers.wait_for, list[int]()

    def open_and_wait_for(jobs: Collection[int]) -> None:
        bench.device.open_gate(gate)
        opened.extend(jobs)
        wait_for(jobs)

    transfers.wait_for = open_and_wait_for  # type: ignore[method-assign]
    return opened


@pytest.mark.parametrize("comes_back", [False, True])
def test_preempted_blocks_are_not_given_on_before_their_store_is_over(comes_back: bool, make_bench: MakeBench) -> None:
    """The device is held, so the store of a request cannot end; its blocks are taken away and go to another request, or
    to itself, of which upstream then reports only what it adds to the blocks that it had."""
    bench = make_bench(executor={"blocks": 8})
    executor, waits = bench.executor, counters.offload_early_reuse_waits.value
    first, second = Request(1, prompt(1), max_new_tokens=6), Request(2, prompt(2), max_new_tokens=2)
    executor.submit(first)
    gate = bench.device.close_gate(executor.stream)
    executor.step()
    executor.step()
    (job,) = jobs(bench.scheduler.side.ledger, StoreJob)
    executor.preempt(first)
    executor.forget_device_cache()
    executor.waiting.insert(int(comes_back), second)
    opened = opened_when_waited_for(bench, gate)
    executor.step()
    if not opened:
        bench.device.open_gate(gate)
    assert opened == [job.number]
    assert counters.offload_early_reuse_waits.value == waits + 1
    finish(bench)
    assert loaded_by(bench, Request(3, prompt(1))) == 20
    assert loaded_by(bench, Request(4, prompt(2))) == 20


def test_a_preempted_request_begins_again_and_is_stored_whole(make_bench: MakeBench) -> None:
    bench = make_bench()
    request = Request(1, prompt(1), max_new_tokens=12)
    bench.executor.submit(request)
    for _ in range(5):
        bench.executor.step()
    bench.executor.preempt(request)
    finish(bench)
    assert request.generated == 12
    whole = (len(request.tokens) - 1) // 4 * 4
    assert loaded_by(bench, Request(2, [*request.tokens[:whole], 5])) == whole


def test_what_upstream_adds_to_blocks_that_are_gone_is_not_believed(make_bench: MakeBench) -> None:
    bench = make_bench()
    side, request = bench.scheduler.side, Request(1, prompt(1, 30))
    for blocks in (range(8), range(10, 18)):  # the second time after preemption
        side.get_num_new_matched_tokens(request, 0)
        side.update_state_after_alloc(request, [list(blocks)])

    def told(computed: int, *new_tokens: int) -> list[tuple[int, ...]]:
        data = RequestData(1, list(new_tokens), [55], computed, 1)
        step = side.build_connector_meta(SchedulerOutput(cached_requests=[data]))
        return [job.blocks for job in step.stores]

    assert told(28, 97) == [tuple(range(10, 17))]
    assert told(36, 96, 95, 94, 93, 92, 91) == []


def test_a_request_that_came_back_grows_into_nobody_knows_which_block(make_bench: MakeBench) -> None:
    """Upstream reports only blocks beyond as many as it reported before. Up to there the request grows in silence,
    and its next block may be one that a running transfer uses: once for each such block, nothing runs on."""
    bench = make_bench()
    side, request = bench.scheduler.side, Request(1, prompt(1, 8))
    for blocks in (range(3), range(10, 12)):  # the second time after preemption
        side.get_num_new_matched_tokens(request, 0)
        side.update_state_after_alloc(request, [list(blocks)])
    side.ledger.plan(StoreJob(99, 5, (20,), (0,)), None)
    side._sources.add(StoreJob(99, 5, (20,), (0,)))

    def is_waited_for(computed: int) -> bool:
        data = RequestData(1, [], [], computed, 1)
        return 99 in side.build_connector_meta(SchedulerOutput(cached_requests=[data])).fences

    assert [computed for computed in range(4, 16) if is_waited_for(computed)] == [7, 11, 15]


@pytest.mark.parametrize("steps", range(6))
def test_a_cancelled_request_keeps_its_blocks_until_nothing_uses_them(steps: int, make_bench: MakeBench) -> None:
    bench = make_bench(executor={"chunk_tokens": 8})
    loaded_by(bench, Request(1, prompt(1)))
    bench.executor.forget_device_cache()
    loading, computing = Request(2, prompt(1), max_new_tokens=9), Request(3, prompt(3), max_new_tokens=9)
    bench.executor.submit(loading, computing)
    gate = bench.device.close_gate(bench.executor.stream)
    for _ in range(steps):
        bench.executor.step()
    for request in (loading, computing):
        bench.executor.cancel(request)
    assert bench.executor.manager.get_finished() == [] or steps < 2
    bench.device.open_gate(gate)
    finish(bench)
    assert loaded_by(bench, Request(4, prompt(1))) == 20


def test_a_request_that_ends_before_its_load_was_told_lets_go(make_bench: MakeBench) -> None:
    bench = make_bench()
    loaded_by(bench, Request(1, prompt(1)))
    request = Request(2, prompt(1))
    assert bench.scheduler.get_num_new_matched_tokens(request, 0) == (20, True)
    assert bench.index.stats().owned == 5
    assert not bench.scheduler.request_finished(request, [])
    assert bench.index.stats().owned == 0


def test_asked_twice_it_pins_once(make_bench: MakeBench) -> None:
    bench = make_bench()
    loaded_by(bench, Request(1, prompt(1)))
    request = Request(2, prompt(1))
    for _ in range(3):
        assert bench.scheduler.get_num_new_matched_tokens(request, 4) == (16, True)
    bench.scheduler.request_finished(request, [])
    assert bench.index.stats().owned == 0


def test_a_prefix_that_ends_inside_a_block_is_continued_from_the_host_tier(make_bench: MakeBench) -> None:
    bench = make_bench()
    loaded_by(bench, Request(1, prompt(1)))
    request = Request(2, prompt(1))
    assert bench.scheduler.get_num_new_matched_tokens(request, 6) == (14, True)
    bench.scheduler.update_state_after_alloc(request, list(range(10, 16)))
    (job,) = bench.scheduler.build_connector_meta(None).loads
    assert job.blocks == (11, 12, 13, 14), "from the block that holds the position on"
    assert job.position == 4, "that block is written whole"


@pytest.mark.parametrize(
    ("names", "shared"),
    [({}, True), ({"lora_task_id": 7}, False), ({"cache_salt_id": 7}, False)],
)
def test_only_equal_adapters_and_salts_share(names: dict[str, Any], shared: bool, make_bench: MakeBench) -> None:
    bench = make_bench()
    loaded_by(bench, Request(1, prompt(1)))
    assert loaded_by(bench, Request(2, prompt(1), **names)) == (20 if shared else 0)
    assert loaded_by(bench, Request(3, prompt(1), **names)) == 20


def test_images_are_told_apart_by_their_digests_and_left_alone_without() -> None:
    def with_images(**names: Any) -> Request:
        request = Request(1, prompt(1))
        for name, value in names.items():
            setattr(request, name, value)
        return request

    spans = {"multimodal_positions": [4], "multimodal_lengths": [8]}
    one, other = ([[number] * 8] for number in (-1, 2))
    identity = identity_of(with_images(multimodal_hashes=one, **spans))
    assert identity is not None
    assert identity.extra_keys == ((4, 12, b"\xff" * 32),)
    assert identity != identity_of(with_images(multimodal_hashes=other, **spans))
    assert identity_of(with_images(**spans)) is None
    assert identity_of(with_images(multimodal_embedding=object())) is None
    assert identity_of(with_images(prompt_embedding_table=object())) is None


def test_state_of_a_request_that_is_left_alone_is_not_kept(make_bench: MakeBench) -> None:
    bench, skipped = make_bench(), counters.offload_requests_skipped.value
    request = Request(1, prompt(1))
    request.prompt_embedding_table = object()  # type: ignore[attr-defined]
    bench.executor.submit(request)
    bench.executor.run()
    assert request.state is State.GONE
    assert counters.offload_requests_skipped.value == skipped + 1
    assert bench.index.stats().free == bench.index.slots
