"""The offload connector on a GPU: traffic through a small executor, failures, shutdown. Needs a CUDA device."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.offload.conftest import BLOCK_BYTES, Bench, serve_alone
from tests.offload.faults import FAULTS, heal, transfers_of
from tests.offload.upstream_double import Request
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, DeviceError, HostPool, open_device

try:
    DEVICE: Device | None = open_device("cuda")
    WHY_NOT = ""
except DeviceError as error:
    DEVICE, WHY_NOT = None, str(error)

pytestmark = pytest.mark.skipif(DEVICE is None, reason=f"no CUDA device: {WHY_NOT}")
REQUESTS = 2000
# A submission that is refused leaves a GPU as it was; a copy that faults takes the whole context with it.
HARMLESS_FAULTS = ("the mark is refused", "the queue is full")


@pytest.fixture(params=("dma", "kernel"))
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    assert DEVICE is not None
    monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_COPY_BY", request.param)
    monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_HOST_BYTES", str(400 * BLOCK_BYTES))
    monkeypatch.setenv("TRTLLM_KVFIX_OFFLOAD_VERIFY", "all")
    made = Bench(DEVICE, blocks=96, chunk_tokens=16)
    yield made
    made.close()
    assert counters.offload_pinned_bytes.value == 0


def serve(bench: Bench, number: int, tokens: list[int]) -> int:
    return serve_alone(bench, Request(number, list(tokens), max_new_tokens=3))  # it appends to its own list


def test_no_block_ever_holds_a_foreign_or_half_written_value(bench: Bench) -> None:
    from tests.offload.test_traffic import Traffic  # noqa: PLC0415

    traffic = Traffic(bench, 5)
    traffic.fail_next_transfer = lambda: None  # type: ignore[method-assign]

    def between(step: int) -> None:
        while traffic.number < REQUESTS and len(bench.executor.waiting) < 3 and len(traffic.open) < 10:
            traffic.turn()
        traffic.collect()
        if bench.executor.scheduled:
            traffic.disturb()
        if step % 16 == 0:
            bench.index.check_invariants()
            bench.executor.check_reads()

    traffic.turn()
    bench.executor.run(between)
    bench.scheduler.build_connector_meta(None)
    assert traffic.number == REQUESTS
    assert bench.executor.corrupt == []
    assert bench.executor.loaded_tokens > REQUESTS
    assert counters.offload_bad_blocks.value == 0
    assert bench.index.stats().owned == 0


@pytest.mark.parametrize("direction", ["store", "load"])
@pytest.mark.parametrize("fault", HARMLESS_FAULTS)
def test_a_transfer_that_fails_costs_time_and_nothing_else(
    fault: str, direction: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = [7, *range(1, 24)]
    if direction == "load":
        serve(bench, 1, tokens)
    with monkeypatch.context() as patch:
        FAULTS[fault](patch, bench, direction)
        assert serve(bench, 2, tokens) == (20 if direction == "load" else 0)
    heal(bench)
    serve(bench, 3, tokens)
    assert serve(bench, 4, tokens) == 20
    assert bench.executor.corrupt == []


def test_a_pool_is_pinned_whole_and_given_back() -> None:
    assert DEVICE is not None
    block_bytes = 1 << 20
    pool = HostPool(DEVICE, host_bytes=(2 << 30) + 17, block_bytes=block_bytes, piece_bytes_max=256 << 20)
    found: dict[str, Any] = {"slots": pool.slots, "pieces": pool.pieces, "pinned": pool.bytes_pinned}
    assert found == {"slots": 2048, "pieces": 8, "pinned": 2 << 30}
    pool.close()
    assert pool.bytes_pinned == 0


def test_shutdown_within_its_bound_while_the_gpu_is_held(bench: Bench) -> None:
    bench.executor.submit(Request(1, [9, *range(1, 24)], max_new_tokens=3))
    bench.executor.step()
    gate = bench.device.close_gate(bench.executor.stream)
    try:
        bench.executor.step()
        bench.executor.step()
        transfers = transfers_of(bench)
        while transfers._stores.stats().queued:
            pass
        assert not transfers._stores.close(0.05), "the device still has it"
    finally:
        bench.device.open_gate(gate)
    assert transfers._stores.close(30)
    bench.executor.reads.clear()
    for request in list(bench.executor.active):
        bench.executor.cancel(request)
    bench.executor.run()
