"""Shipments are read back in the stand-in's loop: staged ones arrived as meant, and those that read late did not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixes.applied import only, standing_in
from tests.standin.serving import Server
from trtllm_kvfix import native
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.staged_offsets_v1.destination import StagedDestination
from trtllm_kvfix.fixes.staged_offsets_v2 import fix as staged_offsets_v2
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import PoolCopies
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.sections import FixSettings
from trtllm_kvfix.staging import current_place
from trtllm_kvfix.staging.read_back import ReadBack

REQUESTS = 24
V1, V2 = "staged-offsets-v1", "staged-offsets-v2"
V2_ARGS: dict[str, Any] = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}
ARGS: dict[str, dict[str, Any]] = {V1: {}, V2: V2_ARGS}
# The draft's, where upstream waits for the target's copies.
DRAFT = {"D": True, "F": True}
ARMS = [("A", V1), ("B", V1), ("B2", V1), ("C", V1), ("B", V2), ("C", V2), ("D", V2), ("F", V2)]


@contextmanager
def looked_at(fix_id: str, every: int = 1) -> Iterator[Registry]:
    registry = Registry(ALL)
    settings = only(fix_id, tuning=FixSettings(read_back_every=every))
    assert registry.apply(settings, Upstream(), at_last=True).applied == (fix_id,)
    try:
        yield registry
    finally:
        assert registry.revert() == []


def seen(fix_id: str, variant: str) -> tuple[int, int, int]:
    """(steps, shipments that were read back, those of them that had not arrived as meant) of a stalled server."""
    draft = DRAFT.get(variant, False)
    before = counts(fix_id)
    server = Server(ARGS[fix_id] | ({"speculative_config": {}} if draft else {}))
    with server.stall(draft=draft) as stall:
        server.serve(server.workload(REQUESTS))
    assert stall.held > 0
    counters.read()
    read_back, wrong = (after - earlier for after, earlier in zip(counts(fix_id), before, strict=True))
    return server.witness.steps, read_back, wrong


def counts(fix_id: str) -> tuple[int, int]:
    pair = (counters.table_read_backs, counters.table_mismatches)
    return tuple(int(each.by_fix().get(fix_id, 0)) for each in pair)  # type: ignore[return-value]  # a pair


def reading_late(destination: StagedDestination, index: Any) -> Any:
    """What the fix ships is overwritten as upstream would ship it: the copy reads the live table when the stream gets
    there."""
    selection = PoolCopies.__getitem__(destination, index)

    def copy_(source: Any, non_blocking: bool = False) -> None:
        selection.copy_(source, non_blocking)
        device, stream = current_place()
        pool, rows, *_ = index
        target = native.DeviceTable(destination.tensor, device)
        for each in range(destination.table.shape[0]) if isinstance(pool, slice) else [pool]:
            to = target.address + each * target.pool_stride * 4
            from_ = destination.table[each].data_ptr()
            device.copy(to, from_, rows.stop * 2 * target.blocks * 4, stream)

    return SimpleNamespace(copy_=copy_)


@pytest.mark.parametrize(("variant", "fix_id"), ARMS)
def test_what_was_staged_arrived_as_meant(variant: str, fix_id: str) -> None:
    with standing_in(variant), looked_at(fix_id) as registry:
        steps, read_back, wrong = seen(fix_id, variant)
        assert read_back >= steps and wrong == 0
        assert registry.report().of(fix_id).faults == 0


@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_a_v1_shipment_that_reads_late_is_counted(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StagedDestination, "__getitem__", reading_late)
    with standing_in(variant), looked_at(V1):
        steps, read_back, wrong = seen(V1, variant)
        assert read_back == steps and wrong > steps / 2


@pytest.mark.parametrize(("variant", "launch"), [("B", "staged_launch_unscaled"), ("C", "StagedLaunch")])
def test_a_v2_launch_that_reads_late_is_counted(
    variant: str, launch: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def as_upstream(*arguments: Any) -> Callable[..., Any]:
        original = arguments[-1]

        def copy_batch_block_offsets_to_device(*args: Any) -> Any:
            return original(*args)

        return copy_batch_block_offsets_to_device

    monkeypatch.setattr(staged_offsets_v2, launch, as_upstream)
    with standing_in(variant), looked_at(V2):
        steps, read_back, wrong = seen(V2, variant)
        assert read_back == steps and wrong > steps / 2
    assert caplog.text.count("arrived wrong") == 1


def test_one_in_so_many_is_read_back() -> None:
    with standing_in("B"), looked_at(V1, every=5):
        steps, read_back, _ = seen(V1, "B")
        assert read_back == steps // 5


def test_by_default_none_is() -> None:
    with standing_in("B"), looked_at(V1, every=0):
        assert seen(V1, "B")[1] == 0


@pytest.mark.parametrize(("variant", "fix_id"), [("B", V1), ("B", V2), ("C", V2)])
def test_a_comparison_that_fails_is_no_fault_of_the_fix(
    variant: str, fix_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(ReadBack, "_compare", fails)
    with standing_in(variant), looked_at(fix_id) as registry:
        steps, read_back, _ = seen(fix_id, variant)
        assert steps > REQUESTS and read_back == 0
        assert registry.report().of(fix_id).faults == 0
