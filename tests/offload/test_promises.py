"""Upstream takes the tokens it was promised, some, or none; it begins again; it lets go."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.offload.ledger import LoadJob
from trtllm_kvfix.offload.patches import lets_go_of_all
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR

from .conftest import Bench, MakeBench, serve_alone
from .ends import planned
from .upstream_double import Request, RequestData, SchedulerOutput


class NewExecutor:
    def _end_transfer_and_maybe_terminate(self, request: Request) -> None: ...


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """The host tier has five blocks of a prompt."""
    made = make_bench()
    serve_alone(made, Request(1, prompt(1)))
    return made


def end_load(bench: Bench, request: Request) -> None:
    """Upstream lets the request go on once its load is over, of however many blocks."""
    _, finished = bench.worker.get_finished([], [request.request_id])
    if not finished:
        bench.wait_for_a_transfer(60)
        _, finished = bench.worker.get_finished([], [])
    assert finished == [request.request_id]
    assert bench.worker.requests_to_recompute == {}
    bench.scheduler.build_connector_meta(None)
    assert bench.index.stats().owned == 0
    assert len(bench.scheduler.side._sources) == 0


def begin(bench: Bench) -> None:
    bench.worker.bind_connector_meta(bench.scheduler.build_connector_meta(None))
    bench.worker.start_load_kv(bench.executor.stream)


@pytest.mark.parametrize("room", [5, 3, 1, 0])
def test_only_what_there_is_room_for_is_loaded(room: int, bench: Bench) -> None:
    """A cache that allocates chunk by chunk may have less room than was promised, and waits all the same."""
    request = Request(2, prompt(1))
    assert bench.scheduler.get_num_new_matched_tokens(request, 0) == (20, True)
    bench.scheduler.update_state_after_alloc(request, list(range(10, 10 + room)))
    (job,) = planned(bench.scheduler.side.ledger, LoadJob)
    assert job.blocks == tuple(range(10, 10 + room))
    assert len(job.slots) == room
    begin(bench)
    end_load(bench, request)


def test_a_promise_that_is_cancelled_holds_nothing_and_keeps_nobody_waiting(bench: Bench) -> None:
    request = Request(2, prompt(1))
    assert bench.scheduler.get_num_new_matched_tokens(request, 6) == (14, True)
    assert bench.index.stats().owned == 4
    bench.scheduler.cancel_load(request, 12, 20)
    assert bench.index.stats().owned == 4, "a part is still wanted"
    bench.scheduler.cancel_load(request, 6, 20)
    assert bench.index.stats().owned == 0
    bench.scheduler.update_state_after_alloc(request, list(range(10, 16)))
    begin(bench)
    end_load(bench, request)


def test_a_load_that_runs_cannot_be_cancelled(bench: Bench) -> None:
    request = Request(2, prompt(1))
    bench.scheduler.get_num_new_matched_tokens(request, 0)
    bench.scheduler.update_state_after_alloc(request, list(range(10, 16)))
    bench.scheduler.cancel_load(request, 0, 20)
    assert bench.index.stats().owned == 5
    begin(bench)
    end_load(bench, request)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_request_that_begins_again_as_a_new_one_is_believed(says_so: bool, bench: Bench) -> None:
    request = Request(2, prompt(2))
    side = bench.scheduler.side

    def told(blocks: list[int], computed: int, *, is_new: bool) -> list[tuple[int, ...]]:
        data = RequestData(2, request.tokens if is_new else [], blocks, computed, 1)
        lists = {"new_requests" if is_new else "cached_requests": [data]}
        return [job.blocks for job in side.build_connector_meta(SchedulerOutput(**lists)).stores]

    for first in (10, 30):
        assert bench.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        bench.scheduler.update_state_after_alloc(request, [first, first + 1])
        assert told([first, first + 1], 0, is_new=True) == []
        if first == 10 and says_so:
            bench.scheduler.request_reset(request)
    assert told([32, 33], 16, is_new=False) == [(30, 31, 32, 33)]


def test_a_load_into_blocks_that_are_still_saved_waits(bench: Bench) -> None:
    """Upstream took them back from a request that it preempted."""
    saved, request = Request(2, prompt(2)), Request(3, prompt(1))
    bench.scheduler.get_num_new_matched_tokens(saved, 0)
    bench.scheduler.update_state_after_alloc(saved, list(range(10, 16)))
    report = SchedulerOutput([RequestData(2, saved.tokens, list(range(10, 16)), 24, 1)])
    (store,) = bench.scheduler.build_connector_meta(report).stores
    bench.scheduler.get_num_new_matched_tokens(request, 0)
    bench.scheduler.update_state_after_alloc(request, [20, 21, 22, 23, 15, 24])
    assert bench.scheduler.build_connector_meta(None).fences == (store.number,)


def test_a_request_that_begins_again_lets_go_of_its_promise(bench: Bench) -> None:
    request = Request(2, prompt(1))
    bench.scheduler.get_num_new_matched_tokens(request, 0)
    bench.scheduler.request_reset(request)
    assert bench.index.stats().owned == 0
    bench.scheduler.request_reset(request)


def test_an_executor_that_lets_go_of_one_request_is_told_of_one(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.worker.side._saved_max = 1
    requests = [Request(number, prompt(number)) for number in range(1, 6)]
    bench.executor.submit(*requests)
    told: list[int] = []
    get_finished = bench.worker.get_finished

    def counted(finished: list[int], loading: list[int]) -> tuple[list[int], list[int]]:
        saved, loaded = get_finished(finished, loading)
        told.append(len(saved))
        return saved, loaded

    bench.worker.get_finished = counted
    bench.executor.run()
    assert max(told) == 1
    assert sum(told) == len(requests)


@pytest.mark.parametrize(
    ("modules", "all_of_them"),
    [
        ({}, True),
        ({"tensorrt_llm": None}, False),
        ({"tensorrt_llm": None, PY_EXECUTOR: SimpleNamespace(PyExecutor=object)}, False),
        ({"tensorrt_llm": None, PY_EXECUTOR: SimpleNamespace(PyExecutor=NewExecutor)}, True),
    ],
)
def test_which_executors_let_go_of_all(
    modules: dict[str, Any], all_of_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert lets_go_of_all() is all_of_them
