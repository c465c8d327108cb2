"""Needs a CUDA GPU, torch, pydantic, and bench/ and tests/ beside integration/.

Tables that a copy engine reads early, in 10,000 iterations of the stand-in's loop for each size from 64 KiB to 16 MiB:
upstream's own writers in between, the copy engine kept busy by others, so that copies are late, and CUDA graphs
captured on another thread around calls of ours. V1 lends its table to the copy. Without the wait for the copy the same
traffic is corrupt. `KVFIX_RESULTS` names a folder for the rows.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pydantic", reason="needs pydantic, for the settings")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from integration.gpu.capturing import Captures  # noqa: E402  not there where it is skipped
from integration.gpu.record import record  # noqa: E402
from integration.gpu.test_overlay import applied, corruptions, standing_in  # noqa: E402
from trtllm_kvfix import native  # noqa: E402
from trtllm_kvfix.fixes.staged_offsets_v1.destination import StagedDestination  # noqa: E402
from trtllm_kvfix.fixes.staged_offsets_v2.fix import StagedLaunch  # noqa: E402
from trtllm_kvfix.metrics import counters  # noqa: E402
from trtllm_kvfix.native import PoolCopies  # noqa: E402

ITERATIONS = 10_000
CONTROL_ITERATIONS = 3_000
SHIPMENTS_A_CAPTURE = 20
BUSY_BYTES = 64 << 20
GIL_WAIT_S = 2e-5
FIGURES = ("iterations", "late_copies", "captures", "offsets_corrupt")
TOKENS_PER_BLOCK = 4


def shape(rows: int, blocks: int, *, v2: bool) -> dict[str, Any]:
    """A server whose table has so many rows of so many blocks, two planes of four bytes each; V2 has two pools."""
    cache = {"max_tokens": 192, "use_kv_cache_manager_v2": v2}
    return {"max_batch_size": rows, "max_seq_len": blocks * TOKENS_PER_BLOCK, "kv_cache_config": cache}


# A batch of one row travels with at least the 64 KiB from which on V1 lends, and V2's with the 256 KiB from which on it
# waits for an early copy.
TABLES = [
    pytest.param(shape(1, 8192, v2=False), "staged-offsets-v1", id="v1-64KiB"),
    pytest.param(shape(8, 8192, v2=False), "staged-offsets-v1", id="v1-512KiB"),
    pytest.param(shape(256, 8192, v2=False), "staged-offsets-v1", id="v1-16MiB"),
    pytest.param(shape(7, 8192, v2=True), "staged-offsets-v2", id="v2-1MiB"),
    pytest.param(shape(127, 8192, v2=True), "staged-offsets-v2", id="v2-16MiB"),
]


@contextmanager
def busy_copy_engine() -> Iterator[None]:
    """Copies from host to device one after the other: others wait for a millisecond or more."""
    stop = threading.Event()
    device = native.open_device("cuda")  # torch's own wait would spoil the captures
    source, target = device.pinned([BUSY_BYTES], "uint8"), device.empty([BUSY_BYTES], "uint8")

    def copy() -> None:
        stream = device.create_stream()
        while not stop.is_set():
            device.copy(target.address, source.address, BUSY_BYTES, stream)
            device.synchronize(stream)
        device.destroy_stream(stream)

    thread = threading.Thread(target=copy)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(GIL_WAIT_S)  # else the engine has nothing to do for as long as this thread waits for the GIL
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(usual_s)


@contextmanager
def captured_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    """Every so often, a graph is captured from before a shipment to the end of the next wait for it."""
    captures = Captures()
    shipped = 1  # before the first: for a table's first launch, rows are allocated by torch, which spoils captures

    def in_a_capture(call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*args: Any, **more: Any) -> Any:
            with captures.around() if shipped % SHIPMENTS_A_CAPTURE == 0 else nullcontext():
                return call(*args, **more)

        return calling

    def counted(ship: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **more: Any) -> Any:
            nonlocal shipped
            shipped += 1
            return ship(*args, **more)

        return in_a_capture(counting)

    def selected(destination: StagedDestination, index: Any) -> Any:
        copy_ = PoolCopies.__getitem__(destination, index).copy_
        return SimpleNamespace(copy_=counted(lambda source, **_: copy_(source, True)))

    tensors = import_module("tensorrt_llm._standin.torch_tensors").TorchTensors
    gather_rows = tensors.gather_rows  # upstream's launch in torch, where it is no single kernel

    def gather_uncaptured(*args: Any) -> None:
        with captures.interrupted():
            gather_rows(*args)

    with monkeypatch.context() as patched:
        patched.setattr(tensors, "gather_rows", gather_uncaptured)
        patched.setattr(StagedDestination, "__getitem__", selected)
        patched.setattr(StagedDestination, "begin", in_a_capture(StagedDestination.begin))
        patched.setattr(StagedLaunch, "__call__", counted(StagedLaunch.__call__))
        yield captures


def note(name: str, fix_id: str, arm: str, *figures: int) -> None:
    record("lent_tables.csv", {"table": name, "fix": fix_id, "arm": arm} | dict(zip(FIGURES, figures, strict=True)))


@pytest.mark.parametrize(("llm_args", "fix_id"), TABLES)
def test_what_is_lent_is_read_before_it_is_written(
    llm_args: dict[str, Any], fix_id: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with standing_in("C"), applied(fix_id), busy_copy_engine(), captured_calls(monkeypatch) as captures:
        before = counters.read()
        steps, _, what = corruptions(llm_args, ITERATIONS)
        after = counters.read()
    late = int(after["late_copies"] - before["late_copies"])
    note(request.node.callspec.id, fix_id, "overlay", steps, late, captures.made, what["block offsets"])
    assert late > 0, "no copy was late, so nothing was shown"
    assert captures.made > 0 and captures.spoilt == []
    assert steps >= ITERATIONS and what["block offsets"] == 0


@pytest.mark.parametrize(("llm_args", "fix_id"), TABLES[1:2])  # where most copies are late
def test_without_the_wait_the_table_is_written_while_it_is_read(
    llm_args: dict[str, Any], fix_id: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(StagedDestination, "begin", StagedDestination.drop_taken)
    monkeypatch.setattr(StagedDestination, "end", StagedDestination.drop_taken)
    with standing_in("C"), applied(fix_id), busy_copy_engine():
        steps, _, what = corruptions(llm_args, CONTROL_ITERATIONS)
    note(request.node.callspec.id, fix_id, "no_wait", steps, 0, 0, what["block offsets"])
    assert what["block offsets"] > 0
