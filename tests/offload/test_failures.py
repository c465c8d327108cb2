"""A transfer that fails, wherever it does, costs time and nothing else: no block is half here, no request hangs."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import unplug
from trtllm_kvfix.offload import scheduler
from trtllm_kvfix.offload.ledger import Ended, LoadJob, StoreJob
from trtllm_kvfix.offload.policy import PendingLoad
from trtllm_kvfix.offload.scheduler import FAILED_IN_A_ROW_MAX, PAUSE_S_MAX

from .conftest import BLOCK_BYTES, Bench, Clock, MakeBench, serve_alone
from .ends import jobs
from .faults import FAULTS, heal, transfers_missed, transfers_of
from .upstream_double import Request, State


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


def serve(bench: Bench, number: int, tokens: list[int]) -> int:
    request = Request(number, tokens, max_new_tokens=3)
    loaded_tokens = serve_alone(bench, request)
    assert request.generated == 3
    return loaded_tokens


def require_clean(bench: Bench) -> None:
    assert bench.executor.corrupt == []
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0
    assert len(bench.scheduler.side._sources) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_fails_leaves_nothing_to_be_found(
    fault: str, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, missed = make_bench(), transfers_missed()
    with monkeypatch.context() as patch:
        FAULTS[fault](patch, bench, "store")
        assert serve(bench, 1, prompt(7)) == 0
    assert transfers_missed() > missed
    assert bench.index.stats().free == bench.index.slots
    heal(bench)
    assert serve(bench, 2, prompt(7)) == 0, "nothing of the failed store is found"
    require_clean(bench)
    if fault != "the lane is closed":
        assert serve(bench, 3, prompt(7)) == 20, "and the next store serves"
    require_clean(bench)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_whose_load_fails_computes_its_tokens(
    fault: str, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    assert serve(bench, 1, prompt(7)) == 0
    recomputed = counters.offload_recomputed_requests.value
    with monkeypatch.context() as patch:
        FAULTS[fault](patch, bench, "load")
        assert serve(bench, 2, prompt(7)) == 20, "promised"
    assert counters.offload_recomputed_requests.value == recomputed + 1
    require_clean(bench)
    heal(bench)
    if fault != "the lane is closed":
        assert serve(bench, 3, prompt(7)) == 20
        assert counters.offload_recomputed_requests.value == recomputed + 1
    require_clean(bench)


def test_without_the_way_back_a_failed_load_is_read(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what upstream alone would do with a load that failed."""
    bench = make_bench()
    serve(bench, 1, prompt(7))
    serve(bench, 2, prompt(8))  # so that other values are left in the blocks
    monkeypatch.setattr(type(bench.worker), "requests_to_recompute", None)
    FAULTS["the copy fails"](monkeypatch, bench, "load")
    serve(bench, 3, prompt(7))
    assert set(bench.executor.corrupt) == {3}


def test_a_host_block_that_somebody_wrote_to_is_not_used(make_bench: MakeBench) -> None:
    bench = make_bench(verify="all")
    serve(bench, 1, prompt(7))
    bad, recomputed = counters.offload_bad_blocks.value, counters.offload_recomputed_requests.value
    pool = transfers_of(bench)._pool
    host = np.ctypeslib.as_array(as_bytes(pool.address, pool.bytes))
    host[2 * BLOCK_BYTES + 5] ^= 1
    assert serve(bench, 2, prompt(7)) == 20
    assert counters.offload_bad_blocks.value == bad + 1
    assert counters.offload_recomputed_requests.value == recomputed + 1
    assert serve(bench, 3, prompt(7)) == 8, "the two good blocks before it"
    assert serve(bench, 4, prompt(8)) == 0
    assert serve(bench, 5, prompt(8)) == 20, "others are untouched"
    bench.index.drop()
    assert [serve(bench, number, prompt(7)) for number in (6, 7)] == [0, 20], "stored anew, it is good"
    require_clean(bench)


def as_bytes(address: int, count: int):  # type: ignore[no-untyped-def]

    return (ctypes.c_uint8 * count).from_address(address)


def test_unplugged_nothing_hangs_and_all_is_given_back(make_bench: MakeBench) -> None:
    bench, errors = make_bench(), counters.offload_errors.value
    executor = bench.executor
    executor.submit(*(Request(number, prompt(number), max_new_tokens=3) for number in range(1, 5)))
    executor.step()
    executor.step()
    unplug(bench.device)
    bench.is_unplugged = True
    executor.reads.clear()
    for request in list(executor.active):
        executor.cancel(request)
    while any(request.state is State.SAVING for request in executor.active):
        for request in executor.manager.get_finished():
            executor._free(request)
    bench.scheduler.build_connector_meta(None)
    assert counters.offload_errors.value > errors
    bench.index.check_invariants()
    assert bench.index.stats().owned == 0
    assert bench.worker.shutdown()
    assert counters.offload_pinned_bytes.value == 0


def test_shutdown_returns_within_its_bound_though_the_device_is_stuck(make_bench: MakeBench) -> None:
    bench = make_bench(shutdown_timeout_s=0.05)
    gate = bench.device.close_gate(bench.executor.stream)
    bench.executor.submit(Request(1, prompt(1), max_new_tokens=3))
    try:
        bench.executor.step()
        bench.executor.step()
        while transfers_of(bench)._stores.stats().in_flight == 0:
            pass  # until the device has it
        assert not bench.worker.shutdown(), "the device still has the pool"
    finally:
        bench.device.open_gate(gate)


def test_a_control_file_that_makes_no_sense_changes_nothing(
    make_bench: MakeBench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "switches.yaml"
    bench = make_bench(control_file=file)
    for text in ("store: perhaps", "stor: off", "[", "{store: off"):
        file.write_text(text)
        assert serve(bench, 1, prompt(1)) in (0, 20)
        assert bench.scheduler.side._switches.store
    assert len([line for line in caplog.messages if "changes nothing" in line]) == 4


def test_transfers_that_find_no_room_are_no_failures(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst says nothing of the transfers after it: it is counted as blocks not saved, and nothing is given up."""
    bench, errors, dropped = make_bench(), counters.offload_errors.value, counters.offload_dropped_blocks.value
    given_up = counters.offload_given_up.value
    with monkeypatch.context() as patch:
        FAULTS["the queue is full"](patch, bench, "store")
        for number in range(FAILED_IN_A_ROW_MAX + 1):
            serve(bench, number, prompt(number))
    heal(bench)
    assert counters.offload_dropped_blocks.value - dropped >= 6 * (FAILED_IN_A_ROW_MAX + 1)
    assert (counters.offload_errors.value, counters.offload_given_up.value) == (errors, given_up)
    serve(bench, 100, prompt(100))
    with monkeypatch.context() as patch:
        FAULTS["the queue is full"](patch, bench, "load")
        assert serve(bench, 101, prompt(100)) == 20, "promised, and computed"
    assert counters.offload_errors.value == errors
    heal(bench)
    assert serve(bench, 102, prompt(100)) == 20
    require_clean(bench)


def test_a_lane_that_is_closed_has_failed_and_is_not_full(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its blocks would count as a burst's, for ever, and nothing would say why nothing is saved."""
    bench, errors, dropped = make_bench(), counters.offload_errors.value, counters.offload_dropped_blocks.value
    FAULTS["the lane is closed"](monkeypatch, bench, "store")
    serve(bench, 1, prompt(1))
    assert counters.offload_errors.value > errors
    assert counters.offload_dropped_blocks.value == dropped
    require_clean(bench)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(scheduler, "monotonic", made)
    return made


@pytest.mark.parametrize("direction", ["store", "load"])
def test_a_direction_that_is_given_up_comes_back_by_itself(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, clock: Clock, direction: str
) -> None:
    bench, given_up = make_bench(), counters.offload_given_up.value
    numbers = iter(range(10_000))
    for marker in range(40):
        serve(bench, next(numbers), prompt(marker))
    with monkeypatch.context() as patch:
        FAULTS["the mark is refused"](patch, bench, direction)
        for number in range(FAILED_IN_A_ROW_MAX):
            serve(bench, next(numbers), prompt(number if direction == "load" else 100 + number))
        assert counters.offload_given_up.value == given_up + 1
        errors, pauses = counters.offload_errors.value, []
        for _ in range(4):
            clock.now = began = clock.now + 0.001
            while counters.offload_errors.value == errors:
                clock.now += 0.5
                serve(bench, next(numbers), prompt(7 if direction == "load" else 200))
            errors = counters.offload_errors.value
            pauses.append(clock.now - began)
        assert pauses == sorted(pauses) and pauses[0] <= 1.5 and pauses[-1] >= 4, "each pause is longer"
    clock.now += PAUSE_S_MAX
    serve(bench, next(numbers), prompt(7 if direction == "load" else 200))
    assert counters.offload_given_up.value == given_up
    assert [serve(bench, next(numbers), prompt(each)) for each in (3, 4)] == [20, 20]
    require_clean(bench)


def test_a_load_that_brings_nothing_ends_no_pause(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """As of a request that was cancelled behind its promise: nothing was copied for it."""
    del clock  # it stands still
    bench, given_up = make_bench(), counters.offload_given_up.value
    for marker in range(FAILED_IN_A_ROW_MAX):
        serve(bench, marker, prompt(marker))
    FAULTS["the mark is refused"](monkeypatch, bench, "load")
    for number in range(FAILED_IN_A_ROW_MAX):
        serve(bench, 100 + number, prompt(number))
    assert counters.offload_given_up.value == given_up + 1
    nothing = LoadJob(10_000, 10_000, (), (), 0)
    bench.scheduler.side._end_load(nothing, PendingLoad([], 0, 0, 0), Ended(nothing.number, ""))
    assert counters.offload_given_up.value == given_up + 1


def test_a_load_that_fails_is_no_hit(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench()
    serve(bench, 1, prompt(1))
    before = counters.offload_host_hit_tokens.value, counters.offload_host_hits.value
    with monkeypatch.context() as patch:
        FAULTS["the copy fails"](patch, bench, "load")
        assert serve(bench, 2, prompt(1)) == 20, "promised"
    heal(bench)
    assert (counters.offload_host_hit_tokens.value, counters.offload_host_hits.value) == before
    assert serve(bench, 3, prompt(1)) == 20
    assert (counters.offload_host_hit_tokens.value, counters.offload_host_hits.value) == (before[0] + 20, before[1] + 1)
    require_clean(bench)


def test_an_idle_engine_shows_its_pool_as_it_is(make_bench: MakeBench) -> None:
    bench = make_bench()
    serve(bench, 1, prompt(1))
    bench.settle()
    stats = bench.index.stats()
    assert counters.offload_pool_busy_blocks.value == stats.owned == 0
    assert counters.offload_pool_free_blocks.value == stats.free == stats.slots - 6


def test_every_iteration_shows_the_pool_as_it_is(make_bench: MakeBench, tmp_path: Path) -> None:
    """And so does one without requests, behind which there may be none for long."""
    file = tmp_path / "switches.yaml"
    bench = make_bench(40, control_file=file)

    def check(step: int) -> None:
        stats = bench.index.stats()
        shown = counters.offload_pool_busy_blocks.value, counters.offload_pool_free_blocks.value
        assert shown == (stats.owned, stats.free), step

    for number in range(24):
        bench.executor.submit(Request(number, prompt(number % 7), max_new_tokens=3))
    bench.executor.run(check)
    for forget in (lambda: file.write_text("drop: 1\n"), bench.executor.update_weights):
        serve(bench, 100, prompt(1))
        bench.settle()
        assert bench.index.stats().free < 40
        forget()
        bench.executor.step()
        check(0)
        assert counters.offload_pool_free_blocks.value == 40
    require_clean(bench)


def test_a_direction_that_only_fails_is_given_up_until_the_tier_is_emptied(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    del clock  # it stands still
    file = tmp_path / "switches.yaml"
    bench, given_up = make_bench(control_file=file), counters.offload_given_up.value
    with monkeypatch.context() as patch:
        FAULTS["the mark is refused"](patch, bench, "store")
        for number in range(FAILED_IN_A_ROW_MAX):
            serve(bench, number, prompt(number))
    assert counters.offload_given_up.value == given_up + 1
    assert [serve(bench, number, prompt(7)) for number in (100, 101)] == [0, 0]
    file.write_text("drop: 1\n")
    assert [serve(bench, number, prompt(7)) for number in (102, 103)] == [0, 20]
    assert counters.offload_given_up.value == 0
    require_clean(bench)


def test_what_is_on_its_way_when_everything_is_dropped_is_not_found_later(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    file = tmp_path / "switches.yaml"
    bench = make_bench(control_file=file)
    executor = bench.executor
    executor.submit(Request(1, prompt(7)))
    gate = bench.device.close_gate(executor.stream)
    executor.step()
    executor.step()
    assert len(jobs(bench.scheduler.side.ledger, StoreJob)) == 1
    file.write_text("{store: off, drop: 1}")
    bench.scheduler.build_connector_meta(None)
    bench.device.open_gate(gate)
    executor.run()
    assert serve(bench, 2, prompt(7)) == 0
    file.unlink()
    assert serve(bench, 3, prompt(7)) == 0
    assert serve(bench, 4, prompt(7)) == 20, "stored anew"
    require_clean(bench)
