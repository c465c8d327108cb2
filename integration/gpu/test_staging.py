"""Needs a CUDA GPU, torch and an extension with kernels.

OffsetStager on real streams: what arrives is what the table held at the call.
"""

from collections.abc import Callable

import numpy as np
import pytest

from trtllm_kvfix import native
from trtllm_kvfix.native import OffsetStager, PoolCopies
from trtllm_kvfix.overlay.fuse import Fuse

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

SCALES, OFFSETS = [2, 6], [1, 3]
UNTOUCHED = -7


@pytest.fixture(scope="module")
def device() -> native.Device:
    return native.open_device("cuda")


def current_stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def stager(device: native.Device, layout: str, mode: str, rows: int, blocks: int, slots: int = 3) -> OffsetStager:
    scales = {} if layout == "v1" else {"index_scales": SCALES, "kv_offset": OFFSETS}
    return OffsetStager(
        layout=layout, num_pools=2, rows_max=rows, blocks_max=blocks, device=device, mode=mode, slots=slots, **scales
    )


def expect(expected: np.ndarray, table: np.ndarray, rows: np.ndarray, width: int, layout: str) -> None:
    batch = table[:, rows, :, :width]
    if layout == "v2":
        k = batch[:, :, 0]
        bad = k == -1
        scaled = k * np.array(SCALES, np.int32)[:, None, None]
        shifted = scaled + np.array(OFFSETS, np.int32)[:, None, None]
        batch = np.stack([np.where(bad, 0, scaled), np.where(bad, 0, shifted)], axis=2)
    expected[:, : len(rows), :, :width] = batch


def scramble(rng: np.random.Generator, table: np.ndarray) -> None:
    if rng.random() < 0.2:
        table[...] = rng.integers(-1, 1 << 20, table.shape)
    else:
        at = tuple(rng.integers(0, size, 20) for size in table.shape)
        table[at] = rng.integers(-1, 1 << 20, 20)


@pytest.mark.parametrize("layout", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["snapshot", "early_copy", "auto"])
@pytest.mark.parametrize("blocks", [64, 37, 1])
def test_overwriting_after_every_ship_changes_nothing(
    device: native.Device, layout: str, mode: str, blocks: int
) -> None:
    rng = np.random.default_rng(blocks)
    rows_max = 48
    table = torch.zeros((2, rows_max, 2, blocks), dtype=torch.int32, pin_memory=True)
    live = table.numpy()
    dst = torch.full((2, rows_max, 2, blocks), UNTOUCHED, dtype=torch.int32, device="cuda")
    expected = dst.cpu().numpy()
    address = dst.data_ptr()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with stager(device, layout, mode, rows_max, blocks) as staging, torch.cuda.stream(stream):
        for _ in range(400):
            gate = device.close_gate(stream.cuda_stream)
            for _ in range(2):
                scramble(rng, live)
                rows = rng.integers(0, rows_max, rng.integers(0, rows_max + 1))
                width = int(rng.integers(0, blocks + 1))
                staging.ship(dst, table, rows, stream=current_stream(), width=width)
                expect(expected, live, rows, width, layout)
            behind = torch.cuda.Event()
            behind.record(stream)
            kept = live.copy()
            live[...] = 123456
            assert not behind.query(), "the stream did not wait: nothing was pending when the table was overwritten"
            device.open_gate(gate)
            stream.synchronize()
            live[...] = kept
            np.testing.assert_array_equal(dst.cpu().numpy(), expected)
    assert dst.data_ptr() == address


def test_a_full_ring_waits_for_the_oldest_and_counts_it(device: native.Device) -> None:
    table = torch.zeros((2, 4, 2, 8), dtype=torch.int32, pin_memory=True)
    dst = torch.zeros((2, 4, 2, 8), dtype=torch.int32, device="cuda")
    with stager(device, "v1", "snapshot", 4, 8, slots=2) as staging:
        filler = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        for value in range(64):
            filler.fill_(value % 7)
            table.fill_(value)
            staging.ship(dst, table, range(4), stream=current_stream())
        torch.cuda.synchronize()
        assert int(dst.unique()) == 63
        assert staging.stats().ring_waits > 0


def test_the_consumer_may_be_a_captured_graph(device: native.Device) -> None:
    table = torch.zeros((2, 4, 2, 8), dtype=torch.int32, pin_memory=True)
    dst = torch.zeros((2, 4, 2, 8), dtype=torch.int32, device="cuda")
    out = torch.zeros_like(dst)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(dst)
    with stager(device, "v1", "early_copy", 4, 8) as staging:
        for value in range(20):
            table.fill_(value)
            staging.ship(dst, table, range(4), stream=current_stream())
            graph.replay()
            table.fill_(-1)
            torch.cuda.synchronize()
            assert int(out.unique()) == value


def test_several_stagers_on_several_streams(device: native.Device) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    tables = [torch.zeros((2, 16, 2, 32), dtype=torch.int32, pin_memory=True) for _ in streams]
    destinations = [torch.zeros((2, 16, 2, 32), dtype=torch.int32, device="cuda") for _ in streams]
    modes = ["snapshot", "early_copy", "auto"]
    staging = [stager(device, "v1", mode, 16, 32) for mode in modes]
    torch.cuda.synchronize()
    for value in range(200):
        for one, stream, table, dst in zip(staging, streams, tables, destinations, strict=True):
            table.fill_(value)
            one.ship(dst, table, range(16), stream=stream.cuda_stream)
            table.fill_(-5)
    torch.cuda.synchronize()
    assert [int(dst.unique()) for dst in destinations] == [199] * 3
    for one in staging:
        one.close()


def test_one_stager_may_change_its_stream(device: native.Device) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    table = torch.zeros((2, 16, 2, 32), dtype=torch.int32, pin_memory=True)
    destinations = [torch.zeros((2, 16, 2, 32), dtype=torch.int32, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    with stager(device, "v1", "early_copy", 16, 32) as staging:
        for value in range(400):
            table.fill_(value)
            staging.ship(destinations[value % 2], table, range(16), stream=streams[value % 2].cuda_stream)
            table.fill_(-5)
        torch.cuda.synchronize()
    assert [int(dst.unique()) for dst in destinations] == [398, 399]


def test_torch_tells_the_stream_of_a_copy_of_v1(device: native.Device) -> None:
    """By its table of C functions, which torch has from 2.10 on: nobody else is asked."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no such table")

    def ask() -> int:
        raise AssertionError("torch was asked from Python")

    table = torch.full((2, 4, 2, 8), 5, dtype=torch.int32, pin_memory=True)
    dst = torch.zeros((2, 4, 2, 8), dtype=torch.int32, device="cuda")
    streams = [torch.cuda.Stream(), torch.cuda.default_stream()]
    torch.cuda.synchronize()
    with stager(device, "v1", "snapshot", 4, 8) as staging:
        copies = PoolCopies(dst, table, staging, ask, Fuse("staged-offsets-v1"), lends=False)
        for value, stream in enumerate(streams):
            gate = device.close_gate(stream.cuda_stream)
            with torch.cuda.stream(stream):
                table.fill_(value + 5)
                copies.begin()
                for pool in range(2):
                    copies[pool, :4].copy_(table[pool, :4], non_blocking=True)
            behind = stream.record_event()
            table.fill_(-1)
            assert not behind.query(), "nothing was pending on that stream"
            device.open_gate(gate)
            torch.cuda.synchronize()
            assert int(dst.unique()) == value + 5


@pytest.mark.parametrize(
    ("dst", "why"),
    [
        (lambda: torch.zeros((2, 4, 2, 8), dtype=torch.int64, device="cuda"), "int64"),
        (lambda: torch.zeros((2, 4, 2, 8), dtype=torch.int32), "is on cpu"),
        (lambda: torch.zeros((2, 4, 2, 16), dtype=torch.int32, device="cuda")[..., ::2], "strides"),
        (lambda: torch.zeros((2, 4, 8), dtype=torch.int32, device="cuda"), "shape"),
    ],
)
def test_a_destination_that_does_not_fit_is_refused(device: native.Device, dst: Callable[[], object], why: str) -> None:
    table = torch.zeros((2, 4, 2, 8), dtype=torch.int32, pin_memory=True)
    with stager(device, "v1", "auto", 4, 8) as staging, pytest.raises(ValueError, match=why):
        staging.ship(dst(), table, range(4), stream=current_stream())
