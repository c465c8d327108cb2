"""KVCacheManagerV2 gives the blocks of a request away when it ends: what was planned for them never begins.

The request ends between the steps in which its transfer is planned, sent and begun. Its blocks go to another request at
once. Transfers are slow: they come behind what that one writes.
"""

from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import pytest

from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.transfers import Transfers
from trtllm_kvfix.offload.worker import OffloadWorker

from .conftest import Bench, MakeBench, serve_alone
from .held import mark_behind
from .upstream_double import Request, State

V2 = SimpleNamespace(kv_cache_map={})
BLOCKS = 8  # of the device: a prompt and its answer take six


def prompt(marker: int, length: int = 22) -> list[int]:
    return [marker, *range(1, length)]


def end_while_a_load_is_planned(bench: Bench) -> None:
    request = Request(2, prompt(1))
    bench.executor.submit(request)
    bench.executor._admit()
    end(bench, request, State.LOADING)


def end_while_a_load_is_told(bench: Bench) -> None:
    """Upstream begins nothing where the batch has become empty."""
    request = Request(2, prompt(1))
    bench.executor.submit(request)
    bench.executor._admit()
    bench.manager.worker.bind_connector_meta(bench.scheduler.build_connector_meta(None))
    end(bench, request, State.LOADING)


def end_while_a_store_is_planned(bench: Bench) -> None:
    request = Request(2, prompt(7), max_new_tokens=3)
    bench.executor.submit(request)
    with mock.patch.object(bench.manager, "get_finished", return_value=[]):  # the end of the store is reported there
        while request.state is not State.SAVING:
            bench.executor.step()
    end(bench, request, State.SAVING)


def end(bench: Bench, request: Request, state: State) -> None:
    assert request.state is state
    assert not bench.worker.kept.keeps(bench.manager, V2, request)
    request.cancelled = True
    bench.executor._free(request)


def hold_transfers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    behind = bench.device.create_stream()
    gate = bench.device.close_gate(behind)
    monkeypatch.setattr(Transfers, "mark", mark_behind(bench.device, behind))

    def release() -> None:
        monkeypatch.undo()
        bench.device.open_gate(gate)
        bench.wait_for_transfers()

    return release


SCENES = [end_while_a_load_is_planned, end_while_a_load_is_told, end_while_a_store_is_planned]


def play(scene: Callable[[Bench], None], bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve_alone(bench, Request(1, prompt(1))) == 0
    bench.executor.forget_device_cache()
    with monkeypatch.context() as patch:
        if scene is end_while_a_store_is_planned:  # what it stores earlier is not meant
            for report in ("_begin", "_go_on"):
                patch.setattr(f"trtllm_kvfix.offload.scheduler.OffloadScheduler.{report}", lambda *_: None)
        scene(bench)
    with monkeypatch.context() as patch:
        release = hold_transfers(bench, patch)
        taker = Request(3, prompt(3), max_new_tokens=6)
        bench.executor.submit(taker)
        for _ in range(3):
            bench.executor.step()
        assert taker.state is State.GENERATION
        bench.device.synchronize(bench.executor.stream)
        release()
    bench.executor.run()
    bench.settle()
    for number, marker in ((11, 1), (12, 7), (13, 3)):
        serve_alone(bench, Request(number, prompt(marker)))


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_begins_for_blocks_that_are_gone(
    scene: Callable[[Bench], None], make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(executor={"blocks": BLOCKS})
    play(scene, bench, monkeypatch)
    assert bench.executor.corrupt == []
    assert len(bench.worker.kept) == 0
    assert bench.manager.finished_loading == {}
    assert (bench.scheduler.side._live, bench.scheduler.side._finishing) == ({}, {})
    assert len(bench.scheduler.side._sources) == 0
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0


@pytest.mark.parametrize("scene", SCENES)
def test_what_begins_all_the_same_moves_foreign_values(
    scene: Callable[[Bench], None], make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: transfers that have begun are waited for, as they were before, and no others are looked at."""
    monkeypatch.setattr(OffloadWorker, "end_transfers_here", lambda *_: None)
    monkeypatch.setattr(OffloadScheduler, "load_not_awaited", lambda *_: None)
    monkeypatch.setattr(OffloadWorker, "_refuse", lambda *_: None)
    bench = make_bench(executor={"blocks": BLOCKS})
    play(scene, bench, monkeypatch)
    assert bench.executor.corrupt
