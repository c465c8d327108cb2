"""Needs a CUDA GPU and torch. A CUDA graph that another thread captures, in torch's default mode, survives what we do
meanwhile, and so do we. The control queries an event as anybody would: that fails, and the capture with it."""

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from trtllm_kvfix import native  # noqa: E402  not there where the module is skipped
from trtllm_kvfix.fixes.staged_offsets_v2.fix import fresh_pinned  # noqa: E402
from trtllm_kvfix.native import OffsetStager  # noqa: E402
from trtllm_kvfix.staging import MovableMark  # noqa: E402

LIMIT_S = 60
BYTES = 1 << 20


def is_captured_well(meanwhile: Callable[[], None]) -> bool:
    """Whether the graph is made and computes what it should, with `meanwhile` run in the middle of its capture."""
    begun, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def capture() -> None:
        x = torch.full((16,), 3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with suppress(RuntimeError):
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                y = x * 2
                begun.set()
                assert done.wait(LIMIT_S)
                y += 1
            graph.replay()
            torch.cuda.synchronize()
            seen.append(int(y.unique()))

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(LIMIT_S)
    try:
        meanwhile()
    finally:
        done.set()
        thread.join(LIMIT_S)
    return seen == [7]


def query_as_anybody_would() -> bool:
    event = torch.cuda.Event()
    event.record()

    def query() -> None:
        with suppress(RuntimeError):
            event.query()

    return is_captured_well(query)


def test_a_plain_query_spoils_the_capture() -> None:
    script = "from integration.gpu.test_captures import query_as_anybody_would as q; print(q())"
    # A process of its own: what it breaks stays there.
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert ran.stdout.split()[-1:] == ["False"], ran.stderr


def test_fresh_pinned_memory_is_taken_while_another_thread_captures() -> None:
    table = torch.zeros((2, 16, 2, 64), dtype=torch.int32, pin_memory=True)
    fresh: list[Any] = []  # all kept, so that torch has to pin more

    def take() -> None:
        fresh.extend(fresh_pinned(table, (items,)) for items in (1 << 10, 1 << 18, 1 << 22))

    assert is_captured_well(take)
    assert len(fresh) == 3 and all(each.is_pinned() for each in fresh)


@pytest.mark.parametrize("mode", ["snapshot", "early_copy"])
@pytest.mark.parametrize("lent", [False, True])
def test_staging_goes_on_while_another_thread_captures(mode: str, lent: bool) -> None:
    device = native.open_device("cuda")
    table = torch.zeros((2, 16, 2, 64), dtype=torch.int32, pin_memory=True)
    dst = torch.zeros((2, 16, 2, 64), dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    with OffsetStager(layout="v1", num_pools=2, rows_max=16, blocks_max=64, device=device, mode=mode) as stager:

        def ship() -> None:
            for value in range(300):
                stager.settle()
                table.fill_(value)
                stager.ship(dst, table, 16, stream=stream.cuda_stream, lent=lent)
            device.synchronize(stream.cuda_stream)

        ship()  # kernels are loaded and memory is taken by the first
        assert is_captured_well(ship)
        stager.settle()
    assert int(dst.unique()) == 299


def test_events_memory_and_waits_go_on_while_another_thread_captures() -> None:
    device = native.open_device("cuda")
    stream = device.create_stream()
    mark = MovableMark(device, stream)

    def use() -> None:
        for _ in range(100):
            memory = device.empty([1024], "int32")
            device.upload(memory, np.ones(1024, np.int32), stream)
            mark.record()
            mark.wait()
            assert mark.done()
            device.synchronize(stream)

    use()
    assert is_captured_well(use)


def test_a_lane_goes_on_while_another_thread_captures() -> None:
    """Its thread polls events all the time."""
    device = native.open_device("cuda")
    stream = device.create_stream()
    lane = native.TransferLane(device, order="any")
    source, target = device.pinned([BYTES], "uint8"), device.empty([BYTES], "uint8")
    source.array[:] = 7

    def transfer() -> None:
        for _ in range(50):
            answer = lane.enqueue(1, *(np.array([n], np.uint64) for n in (target.address, source.address, BYTES)))
            assert answer == "taken" and lane.wait(1, LIMIT_S)
            assert [ended.error for ended in lane.take_ended()] == [""]

    transfer()
    assert is_captured_well(transfer)
    assert (device.download(target, stream) == 7).all()
    assert lane.close(LIMIT_S)
