"""A store waits for the kernels that write its blocks. Without its mark it saves what was there before, every time.

KVFIX_ORDER_ROUNDS sets how often. A gate holds the device in each round, so one is like another; `make ci-long` takes
many.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from trtllm_kvfix.native import Mark
from trtllm_kvfix.offload.transfers import Transfers

from .conftest import Bench, MakeBench
from .upstream_double import Request, State

ROUNDS = int(os.environ.get("KVFIX_ORDER_ROUNDS", "25"))


def prompt(marker: int) -> list[int]:
    return [marker, marker + 1, *range(1, 22)]


@contextmanager
def gate_closed(bench: Bench) -> Iterator[None]:
    """Holds the stream that computes."""
    gate = bench.device.close_gate(bench.executor.stream)
    try:
        yield
    finally:
        bench.device.open_gate(gate)


def bystander(bench: Bench) -> Callable[[], None]:
    """A copy as large as a store, on a stream that waits for nobody."""
    stream, aside = bench.device.create_stream(), bench.device.pinned((64,), "uint32")
    target = bench.device.pinned((64,), "uint32")

    def run() -> None:
        bench.device.copy(target.address, aside.address, target.nbytes, stream)
        bench.device.synchronize(stream)

    return run


def no_mark(self: Transfers, stream: int) -> Mark | None:  # noqa: ARG001  that is the bug
    return None


def store_behind_held_kernels(bench: Bench, number: int, while_held: Callable[[], None]) -> None:
    """Compute a prompt while the device is held, so that its store is given out before any of its blocks is written."""
    executor = bench.executor
    executor.submit(Request(number, prompt(number), max_new_tokens=3))
    with gate_closed(bench):
        executor.step()
        executor.step()  # the prompt's report says that it is computed: the store begins
        while_held()
    executor.run()


def load_it_again(bench: Bench, number: int) -> int:
    """Counts the tokens that came from the host tier."""
    executor = bench.executor
    executor.forget_device_cache()
    before = executor.loaded_tokens
    executor.submit(Request(number + ROUNDS, prompt(number), max_new_tokens=2))
    executor.run()
    return executor.loaded_tokens - before


def test_a_store_waits_for_the_kernels_that_write_its_blocks(make_bench: MakeBench) -> None:
    bench = make_bench(host_blocks=64)
    run_bystander = bystander(bench)

    def store_is_held() -> None:
        run_bystander()
        bench.worker.get_finished([], [])
        assert bench.scheduler.side.index.stats().owned == 5
        assert bench.scheduler.side.ledger.ended == []

    for number in range(1, ROUNDS + 1):
        store_behind_held_kernels(bench, number * 1000, store_is_held)
        assert load_it_again(bench, number * 1000) == 20
    assert bench.executor.corrupt == []


def test_without_the_mark_every_store_is_corrupt(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfers, "mark", no_mark)
    bench = make_bench(host_blocks=64)
    side = bench.worker.side

    def store_has_ended() -> None:
        while not side._ledger.ended:
            side.finished([], [])

    corrupt = 0
    for number in range(1, ROUNDS + 1):
        before = len(bench.executor.corrupt)
        store_behind_held_kernels(bench, number * 1000, store_has_ended)
        load_it_again(bench, number * 1000)
        corrupt += len(bench.executor.corrupt) > before
    assert corrupt == ROUNDS


def hand_over(bench: Bench, number: int, while_held: Callable[[], None]) -> None:
    """A request is given blocks, and its load begins, while the last reads of their former owner are held."""
    executor = bench.executor
    executor.forget_device_cache()
    before = executor.loaded_tokens
    first, second = (Request(number + one, short_prompt(one), max_new_tokens=3) for one in (1, 2))
    executor.submit(first, second)
    while first.state is not State.GENERATION:
        executor.step()
    with gate_closed(bench):
        while executor.waiting:  # until the first has gone, and the second has its blocks
            executor.step()
        assert executor.loaded_tokens - before == 2 * 20  # of both; a load that waits for nobody may be over by now
        while_held()
    executor.run()


def short_prompt(marker: int) -> list[int]:
    return [marker, *range(1, 21)]


@pytest.fixture
def small_bench(make_bench: MakeBench) -> Bench:
    """The device has room for one request; what two prompts hold is in the host tier."""
    bench = make_bench(host_blocks=64, executor={"blocks": 8})
    for number in (1, 2):
        bench.executor.submit(Request(number, short_prompt(number), max_new_tokens=3))
        bench.executor.run()
    return bench


def test_a_load_waits_for_those_who_still_read_its_blocks(small_bench: Bench) -> None:
    run_bystander = bystander(small_bench)

    def load_is_held() -> None:
        run_bystander()
        assert small_bench.worker.get_finished([], []) == ([], [])

    for round_number in range(1, ROUNDS + 1):
        hand_over(small_bench, 10 * round_number, load_is_held)
    assert small_bench.executor.loaded_tokens == ROUNDS * 2 * 20
    assert small_bench.executor.corrupt == []


def test_without_the_mark_every_load_overwrites_what_is_read(
    small_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transfers, "mark", no_mark)
    side = small_bench.worker.side

    def load_has_ended() -> None:
        while side._transfers is not None and side._transfers.running():  # it may have ended, and been reported, before
            small_bench.manager.get_finished()

    for round_number in range(1, ROUNDS + 1):
        hand_over(small_bench, 10 * round_number, load_has_ended)
    assert len(set(small_bench.executor.corrupt)) >= ROUNDS
