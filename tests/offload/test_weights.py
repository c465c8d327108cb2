"""Weights change: nothing that was computed with the old ones is read by what is computed with the new ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from trtllm_kvfix.offload import patches
from trtllm_kvfix.offload.ledger import LoadJob, Step, Weights
from trtllm_kvfix.offload.patches import OUTDATED
from trtllm_kvfix.offload.transfers import Transfers

from .conftest import Bench, MakeBench
from .held import mark_behind
from .rank_threads import on_all, started
from .test_order import gate_closed
from .test_round_trip import prompt
from .upstream_double import Request, State

BEHIND = 20  # of a prompt of 24 tokens: all whole blocks but the one with the last token


def serve(bench: Bench, number: int, marker: int = 1) -> int:
    """Counts the tokens that came from the host tier."""
    before = bench.executor.loaded_tokens
    bench.executor.submit(Request(number, prompt(marker)))
    bench.executor.run()
    bench.settle()
    return bench.executor.loaded_tokens - before


def updated(bench: Bench) -> None:
    bench.executor.update_weights()


def changed_by_an_extension_that_only_resets(bench: Bench) -> None:
    bench.executor.weights += 1
    bench.executor.reset_prefix_cache()


def updated_halfway(bench: Bench) -> None:
    def fail() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        bench.executor.update_weights(fail)
    bench.executor.forget_device_cache()


CHANGES = [updated, changed_by_an_extension_that_only_resets, updated_halfway]


@contextmanager
def stores_held(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Transfers begin once the gate is open."""
    behind = bench.device.create_stream()
    gate = bench.device.close_gate(behind)

    with monkeypatch.context() as patch:
        patch.setattr(Transfers, "mark", mark_behind(bench.device, behind))
        yield lambda: bench.device.open_gate(gate)


@pytest.mark.parametrize("change", CHANGES)
def test_old_blocks_are_not_found_again(make_bench: MakeBench, change: Callable[[Bench], None]) -> None:
    bench = make_bench()
    serve(bench, 1)
    change(bench)
    assert serve(bench, 2) == 0
    bench.executor.forget_device_cache()
    assert serve(bench, 3) == BEHIND, "what came behind the change is found"
    assert bench.executor.corrupt == [] and bench.executor.reads_checked
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0


@pytest.mark.parametrize("change", CHANGES)
def test_they_are_where_nobody_takes_a_note(
    make_bench: MakeBench, change: Callable[[Bench], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(Weights, "_note", lambda *_: None)
    bench = make_bench()
    serve(bench, 1)
    change(bench)
    assert serve(bench, 2) == BEHIND
    assert 2 in bench.executor.corrupt


def test_a_save_that_runs_ends_first_and_is_not_found(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    executor = bench.executor
    waited: list[bool] = []
    with stores_held(bench, monkeypatch) as open_gate:
        executor.submit(Request(1, prompt(1)))
        while not bench.worker.side._transfers.running():
            executor.step()
        (running,) = bench.worker.side._transfers.running()
        wait = Transfers._wait

        def opened(self: Transfers, *args: object) -> None:
            open_gate()
            wait(self, *args)  # type: ignore[arg-type]
            waited.append(running.lane is not None and running.lane.wait(running.number, 0))

        monkeypatch.setattr(Transfers, "_wait", opened)
        executor.update_weights(lambda: waited.append(not waited))
    assert waited == [True, False], "over before the weights change"
    executor.run()
    bench.settle()
    executor.forget_device_cache()
    assert serve(bench, 2) == 0
    assert executor.corrupt == []


def test_the_wait_is_over_when_nothing_new_comes(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has ended stays with its lane while the executor's thread stands still; something may come meanwhile."""
    bench = make_bench()
    executor, transfers = bench.executor, bench.worker.side._transfers
    executor.submit(Request(1, prompt(1)))
    with gate_closed(bench):  # or the store may be over within the step in which it begins
        while not transfers.running():
            executor.step()
        (first,) = transfers.running()
    later = type(first)(first.job._replace(number=99), lane=first.lane)
    waited: list[int] = []
    monkeypatch.setattr(transfers, "running", lambda: [first, later][: 1 + len(waited)])
    monkeypatch.setattr(transfers, "_wait", lambda record, *_: waited.append(record.number))
    transfers.end_what_runs()
    assert waited == [first.number, 99]
    monkeypatch.undo()
    executor.run()


@pytest.mark.parametrize("promised", [True, False], ids=["promised", "begun"])
def test_a_load_that_is_on_its_way_brings_nothing(
    make_bench: MakeBench, promised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    executor = bench.executor
    serve(bench, 1)
    executor.forget_device_cache()
    request = Request(2, prompt(1))
    executor.submit(request)
    if promised:
        tell = bench.scheduler.update_state_after_alloc

        def change_first(*args: object) -> None:
            monkeypatch.undo()
            updated(bench)
            tell(*args)

        monkeypatch.setattr(bench.scheduler, "update_state_after_alloc", change_first)
    else:
        with gate_closed(bench):  # or the load may be over within the step
            executor.step()
        assert request.state is State.LOADING
        updated(bench)
    executor.run()
    bench.settle()
    assert executor.corrupt == [] and request.state is State.GONE
    executor.forget_device_cache()
    assert serve(bench, 3) == 0, "it computed with both, so nothing of it is kept"
    assert executor.corrupt == []
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0


def test_it_is_read_where_loads_are_not_outdated(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr("trtllm_kvfix.offload.scheduler.Loads.outdate", lambda _: None)
    bench = make_bench()
    serve(bench, 1)
    bench.executor.forget_device_cache()
    bench.executor.submit(Request(2, prompt(1)))
    with gate_closed(bench):
        bench.executor.step()
    updated(bench)
    bench.executor.run()
    assert 2 in bench.executor.corrupt


def live_across(bench: Bench) -> list[int]:
    """A request computes with both weights. Another one asks for its prompt."""
    executor = bench.executor
    executor.submit(Request(1, prompt(1), max_new_tokens=12))
    while not executor.active or executor.active[0].state is not State.GENERATION:
        executor.step()
    updated(bench)
    executor.run()
    bench.settle()
    executor.forget_device_cache()
    serve(bench, 2)
    return executor.corrupt


def test_a_request_that_outlives_its_weights_keeps_its_blocks_to_itself(make_bench: MakeBench) -> None:
    assert live_across(make_bench(executor={"chunk_tokens": 8})) == []


def test_others_read_them_where_it_does_not(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr("trtllm_kvfix.offload.scheduler.LiveRequest.outlive_weights", lambda _: None)
    assert set(live_across(make_bench(executor={"chunk_tokens": 8}))) == {2}


def test_nothing_is_stored_or_looked_up_while_they_change(make_bench: MakeBench) -> None:
    """The loop may go on as soon as upstream lets it, and that is before the call returns."""
    bench = make_bench()
    serve(bench, 1)
    bench.executor.update_weights(lambda: (serve(bench, 2, marker=2), None)[1])
    assert serve(bench, 3, marker=2) == 0
    assert bench.executor.corrupt == []


def test_another_engine_of_the_process_keeps_its_blocks(make_bench: MakeBench) -> None:
    changed, other = make_bench(), make_bench()
    serve(other, 1)
    updated(changed)
    other.executor.forget_device_cache()
    assert serve(other, 2) == BEHIND


def test_an_engine_that_cannot_be_found_is_any(make_bench: MakeBench) -> None:
    bench = make_bench()
    serve(bench, 1)
    patches.noting(lambda _: None)(object())
    bench.executor.forget_device_cache()
    assert serve(bench, 2) == 0


def test_an_engine_without_a_connector_changes_nobodys(make_bench: MakeBench) -> None:
    bench = make_bench()
    serve(bench, 1)

    class Bare:
        kv_connector_manager = None

    patches.noting(lambda _: None)(Bare())
    bench.executor.forget_device_cache()
    assert serve(bench, 2) == BEHIND


def test_all_ranks_compute_what_the_first_says() -> None:
    """The second one has heard of no change, and its load ended well in an earlier iteration than the first one's."""
    ranks = started()
    gate = ranks[0].device.close_gate(ranks[0].stream)
    step = Step((LoadJob(1, 7, (0, 1), (3, 4), 8),))
    for rank in ranks:
        rank.worker.bind(step)
        rank.worker.start(rank.stream)
    waiting = [7]
    assert on_all(ranks, lambda rank: rank.worker.finished([], waiting)) == [([], [])] * 2
    ranks[0].link.ledger.outdate(1)
    ranks[0].device.open_gate(gate)
    waiting = []
    loaded: list[list[int]] = []
    while not loaded:
        loaded = [ids for _, ids in on_all(ranks, lambda rank: rank.worker.finished([], waiting)) if ids]
    assert loaded == [[7], [7]]
    assert [rank.worker.recompute for rank in ranks] == [{7: 8}] * 2
    assert [ended.error for ended in ranks[0].link.ledger.ended] == [OUTDATED]
    assert all(rank.worker._outdated == set() for rank in ranks)
    on_all(ranks, lambda rank: rank.worker.close())
