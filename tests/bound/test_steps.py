"""Schedulers over the bound manager, the index mapper, and the launch that reads late."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.bound import ERAS, load
from tests.bound.making import add, finish_prompt, make_manager, make_request, name_of

kvfix_bound = load()

LATE = ("C", "D")


@pytest.fixture(params=[name for name in ERAS if name != "A"])
def era_with_rows(request: pytest.FixtureRequest) -> Any:
    return getattr(kvfix_bound, request.param)


@pytest.fixture
def launches() -> Iterator[list[tuple[int, Callable[[], None]]]]:
    held: list[tuple[int, Callable[[], None]]] = []
    kvfix_bound.set_launcher(lambda stream, thunk: held.append((stream, thunk)))
    yield held
    kvfix_bound.set_launcher(None)


def is_late(era: Any) -> bool:
    return name_of(era) in LATE


def test_no_evict_admits_what_can_end(era: Any) -> None:
    manager = make_manager(era, blocks=8)
    capacity = era.CapacityScheduler(8, era.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, True)
    requests = [make_request(era, i, range(100 * i, 100 * i + 8)) for i in range(1, 4)]
    fitting, disaggregated, paused = capacity(requests, manager)
    assert [r.request_id for r in fitting] == [1, 2] and fitting[0] is requests[0]
    assert disaggregated == [] and paused == []
    assert all(name != "get_remaining_blocks_to_completion" for name, _ in manager.witness_calls())


def test_only_who_generates_is_taken_without_a_question(era: Any) -> None:
    """Prompts that have begun, and those whose load is over, wait in their turn. A load that runs is not looked at."""
    manager = make_manager(era, blocks=6)
    capacity = era.CapacityScheduler(8, era.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, True)
    older, loading, loaded = (make_request(era, i, range(100 * i, 100 * i + 8)) for i in range(1, 4))
    add(manager, loading, loaded)
    loading.state = era.LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS
    assert capacity([loading, loaded], manager)[0] == [loaded]
    assert capacity([loading, older], manager)[0] == [], "it takes 4 blocks, and 2 are free"
    assert capacity([older, loaded], manager)[0] == [], "it stops at the first without room"
    loaded.context_current_position += 4
    assert capacity([older, loaded], manager)[0] == [], "it has begun, and is asked all the same"
    finish_prompt(era, loaded)
    assert capacity([older, loaded], manager)[0] == [loaded]


def test_one_prefix_is_computed_once(era: Any) -> None:
    manager = make_manager(era, blocks=64)
    capacity = era.CapacityScheduler(8, era.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, True)
    requests = [make_request(era, i, [*range(8), i]) for i in range(1, 4)]
    assert [r.request_id for r in capacity(requests, manager)[0]] == [1]


def test_max_utilization_pauses_the_newest(era: Any) -> None:
    manager = make_manager(era, blocks=4)
    capacity = era.CapacityScheduler(8, era.CapacitySchedulerPolicy.MAX_UTILIZATION, True)
    requests = [make_request(era, i, range(100 * i, 100 * i + 8)) for i in (1, 2)]
    add(manager, *requests)
    for request in requests:
        finish_prompt(era, request)
    fitting, _, paused = capacity(requests, manager)
    assert [r.request_id for r in fitting] == [1] and [r.request_id for r in paused] == [2]


def test_a_batch_keeps_to_its_tokens(era: Any) -> None:
    policy = era.ContextChunkingPolicy.FIRST_COME_FIRST_SERVED
    chunked = era.MicroBatchScheduler(era.ContextChunkingConfig(policy, 4), None)
    generating = make_request(era, 1, range(4))
    generating.draft_tokens = [5, 6]
    finish_prompt(era, generating)
    waiting = make_request(era, 2, range(20))
    contexts, generations = chunked([generating, waiting], set(), 8, 13)
    assert generations == [generating] and contexts == [waiting]
    assert waiting.context_chunk_size == 8
    whole = era.MicroBatchScheduler()
    waiting.context_chunk_size = 3
    assert whole([waiting], set(), 8, 19) == ([], [])
    assert whole([waiting], set(), 8, 20) == ([waiting], [])
    assert whole([waiting], {2}, 8, 20) == ([], [])
    assert waiting.context_chunk_size == 20


def test_rows_of_the_mapper(era_with_rows: Any) -> None:
    era = era_with_rows
    with pytest.raises(TypeError):
        era.IndexMapper(4)
    mapper = era.IndexMapper(max_batch_size=3, max_beam_width=2)
    assert [mapper.add_new_sequence(i) for i in (10, 11, 12)] == [0, 1, 2]
    with pytest.raises(RuntimeError):
        mapper.add_new_sequence(13)
    with pytest.raises(TypeError):
        mapper.get_index(request_id=10)
    mapper.remove_sequence(11)
    assert mapper.add_new_sequence(13) == 1
    rows = mapper.get_copy_index([12, 13], 1, 2)
    assert rows.tolist() == [4, 2, 3]
    mapper.get_copy_index([10], 1, 1)
    assert rows.tolist() == [0, 2, 3]
    assert hasattr(mapper, "gather_k_block_offsets") == is_late(era)


def test_gathering_leaves_the_copy_index_alone() -> None:
    mapper = kvfix_bound.C.IndexMapper(2, 1)
    mapper.add_new_sequence(5)
    mapper.add_new_sequence(6)
    rows = mapper.get_copy_index([6], 1, 1)
    source = np.arange(16, dtype=np.int32).reshape(1, 2, 2, 4)
    target = np.zeros((1, 2, 3), dtype=np.int32)
    mapper.gather_k_block_offsets(source=source, destination=target, request_ids=[6, 5], num_blocks=3)
    assert target[0].tolist() == [[8, 9, 10], [0, 1, 2]] and rows.tolist() == [1]
    assert (mapper.size(), mapper.num_free_slots()) == (2, 0)


def launch(era: Any, source: Any, target: Any, index: Any, **changes: Any) -> None:
    arguments: dict[str, Any] = {"input": source, "output": target, "copy_index": index, "stream": 17}
    if is_late(era):
        arguments |= {"index_scales": np.array([10], np.int32), "kv_offset": np.array([5], np.int32)}
    else:
        arguments["copy_v_idx"] = True
    era.copy_batch_block_offsets_to_device(**(arguments | changes))


def test_a_launch_reads_when_it_runs(era_with_rows: Any, launches: list[tuple[int, Callable[[], None]]]) -> None:
    source, target = np.zeros((1, 3, 2, 4), np.int32), np.full((1, 2, 2, 4), 99, np.int32)
    index = np.array([0, 1], np.int32)
    launch(era_with_rows, source, target, index)
    assert (target == 99).all()
    source[0, 2, 0], source[0, 2, 1] = [3, 4, -1, 0], [7, 8, 9, 0]
    index[1] = 2
    (stream, thunk) = launches.pop()
    assert stream == 17
    thunk()
    if is_late(era_with_rows):
        assert target[0, 1].tolist() == [[30, 40, 0, 0], [35, 45, 0, 5]]
    else:
        assert target[0, 1].tolist() == [[3, 4, -1, 0], [7, 8, 9, 0]]


def test_a_launch_without_a_launcher_runs_at_once(era_with_rows: Any) -> None:
    source, target = np.ones((1, 1, 2, 4), np.int32), np.zeros((1, 1, 2, 4), np.int32)
    launch(era_with_rows, source, target, np.zeros(1, np.int32))
    assert target.any()


def test_a_launch_refuses_what_it_cannot_read(era_with_rows: Any) -> None:
    source, target = np.ones((1, 1, 2, 4), np.int32), np.zeros((1, 1, 2, 4), np.int32)
    index = np.zeros(1, np.int32)
    with pytest.raises(TypeError):
        launch(era_with_rows, source, target, None)
    with pytest.raises(RuntimeError):
        launch(era_with_rows, source, target, index.astype(np.int64))
    with pytest.raises(RuntimeError, match="multiple of 4"):
        launch(era_with_rows, source[..., :3].copy(), target, index)
