"""A fix that fails falls back: it waits, it loses nothing, and what upstream raises is upstream's."""

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.executor.test_block_offsets_v2 import V2 as WITH_V2
from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault, Injected, corruptions, failing
from tests.fixes.test_staged_offsets_v1 import Scene, by_pool
from tests.simulated import SHAPE, Bench
from tests.standin.fixture import upstream
from tests.standin.serving import Server
from trtllm_kvfix import native
from trtllm_kvfix.fixes import waits as finishing
from trtllm_kvfix.fixes.concurrent_pins.fix import Turns
from trtllm_kvfix.fixes.input_copy_fence.fix import InputFence
from trtllm_kvfix.fixes.nixl_listener.fix import without_listener
from trtllm_kvfix.fixes.staged_offsets_v1.destination import StagedDestination
from trtllm_kvfix.fixes.staged_offsets_v2.fix import StagedOffsetsV2
from trtllm_kvfix.fixes.waits import finish
from trtllm_kvfix.native import OffsetStager
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.overlay.fuse import Fuse
from trtllm_kvfix.staging import on_stream, stagers

V1, V2 = "fixes.staged_offsets_v1", "fixes.staged_offsets_v2"


def as_it_came(self: Any, source: Any, non_blocking: bool = False) -> Any:
    return self._selected.copy_(source, non_blocking=non_blocking)


@pytest.mark.parametrize(
    ("fix_id", "place", "fallback", "unsafe"),
    [
        ("staged-offsets-v1", Fault(f"{V1}.fix.StagedDestination", "C", corruptions),
         f"{V1}.destination._Blocking.copy_", as_it_came),
        ("staged-offsets-v2", Fault(f"{V2}.fix.is_on_device", "C", corruptions, WITH_V2),
         f"{V2}.fix.finish", lambda *_: None),
        ("input-copy-fence", Fault("fixes.input_copy_fence.fix.InputFence.record", "C", corruptions),
         "fixes.input_copy_fence.fix.finish", lambda *_: None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_fallback_that_does_not_wait_corrupts(
    fix_id: str, place: Fault, fallback: str, unsafe: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing_in(place.variant), failing(place.name, always=True), applied([fix_id]):
        assert [each for each in corruptions(place) if each.what == "block offsets"] == []
    monkeypatch.setattr(f"trtllm_kvfix.{fallback}", unsafe)
    with standing_in(place.variant), failing(place.name, always=True), applied([fix_id]):
        assert corruptions(place)


def arrived_with(place: str, statements: Callable[[Any, Any], None], *, always: bool) -> tuple[Any, Any, Fuse]:
    """The contents of two pools in the end, and what they should be; our code fails at `place` in upstream's method."""
    with upstream("B"):
        scene = Scene(2)
        scene.table.numpy()[...] = scene.contents
        destination: StagedDestination = scene.destination
        with scene.tensors.on(scene.stream), failing(place, always=always):
            destination.begin()
            statements(destination, scene.table)
            if not destination.failed:
                try:
                    destination.flush()
                except Injected as error:
                    destination.tried.fault(error)
            destination.copy_rest()
            scene.table.numpy()[...] = 0
        seen = scene.tensors.pinned(*scene.table.shape)
        with scene.tensors.on(scene.stream):
            seen.copy_(scene.tensor)
        return seen.numpy().copy(), scene.contents, destination.tried


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
def test_a_pool_that_was_taken_is_not_lost_when_the_shipment_fails(always: bool) -> None:
    seen, expected, tried = arrived_with("staging.place.current_place", by_pool(3), always=always)
    np.testing.assert_array_equal(seen[:, :3], expected[:, :3])
    assert tried.faults == 1, "what is left of a call does without us"


def test_pools_left_over_at_the_end_are_not_lost_when_that_fails() -> None:
    def one_of_two(dst: Any, table: Any) -> None:
        dst[0, :2].copy_(table[0, :2], non_blocking=True)

    seen, expected, tried = arrived_with(f"{V1}.destination.StagedDestination._places_left", one_of_two, always=False)
    np.testing.assert_array_equal(seen[0, :2], expected[0, :2])
    assert tried.faults == 1


@pytest.mark.parametrize("variant", ["B", "C"])
@pytest.mark.parametrize(("fix_id", "llm_args"), [("staged-offsets-v1", {}), ("staged-offsets-v2", WITH_V2)])
def test_a_stager_that_fails_is_a_fault_and_the_fallback_is_right(
    variant: str, fix_id: str, llm_args: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The native part throws, at the first shipment of each table and at all later ones."""
    made = OffsetStager

    def closed(**how: Any) -> OffsetStager:
        stager = made(**how)
        stager.close()
        return stager

    monkeypatch.setattr(stagers, "OffsetStager", closed)
    with standing_in(variant), applied([fix_id]):
        server = Server(llm_args)
        with server.stall() as stall:
            server.serve(server.workload(16))
        assert stall.held > 0 and server.witness.corrupt("block offsets") == []
        assert fuse.of(fix_id).blown
        server.close()


class Theirs(Exception):
    """Upstream raises this."""


ERROR = Theirs("upstream's own")


def raising(*_: Any, **__: Any) -> Any:
    raise ERROR


def launched_by_upstream() -> None:
    bench = Bench()
    launch = StagedOffsetsV2().launch(raising)
    tensors = [bench.pinned((2,)), bench.pinned((SHAPE[0],)), bench.pinned((SHAPE[0],))]
    with on_stream(bench.device, bench.stream):
        launch(bench.table, bench.output, *tensors, bench.stream)


def shipped_per_layer() -> None:
    bench = Bench()
    manager = SimpleNamespace(host_kv_cache_block_offsets=bench.table)
    index = bench.pinned((2,))
    try:
        with on_stream(bench.device, bench.stream):  # where memory is to come from
            StagedOffsetsV2().per_layer(raising)(manager, None, [1, 2], index, 0, 2)
    finally:
        assert manager.host_kv_cache_block_offsets is bench.table


def configured() -> None:
    class Config:
        def __init__(self, enable_listen_thread: bool = True) -> None:
            del enable_listen_thread
            raise ERROR

    Config.__init__ = without_listener(["adapter"], Config.__init__)  # type: ignore[method-assign]
    eval("Config()", {"__name__": "adapter", "Config": Config})


@pytest.mark.parametrize(
    ("fix_id", "call"),
    [
        ("staged-offsets-v2", launched_by_upstream),
        ("staged-offsets-v2", shipped_per_layer),
        ("input-copy-fence", lambda: InputFence().recording(raising)(object(), 1, key=2)),
        ("input-copy-fence", lambda: InputFence().waiting(raising)(object(), 1, key=2)),
        ("concurrent-pins", lambda: Turns().guarded(raising)(1, key=2)),
        ("nixl-listener", configured),
    ],
)
@pytest.mark.parametrize("blown", [False, True], ids=["", "stood down"])
def test_what_upstream_raises_is_passed_on_as_it_is(fix_id: str, call: Callable[[], Any], blown: bool) -> None:
    fuse.reset(fix_id)
    tried = fuse.of(fix_id)
    tried.blown = blown
    with pytest.raises(Theirs) as raised:
        call()
    fuse.reset(fix_id)
    assert raised.value is ERROR and raised.value.__context__ is None
    assert tried.faults == 0


@pytest.mark.parametrize("fault", [False, True], ids=["", "after a fault of ours"])
def test_what_the_v1_manager_raises_is_passed_on_as_it_is(fault: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"{V1}.fix.StagedDestination" if fault else f"{V1}.fix._take_back"
    with standing_in("C"), failing(place, always=True), applied(["staged-offsets-v1"]) as registry:
        server = Server({})
        monkeypatch.setattr(type(server.manager.impl), "copy_batch_block_offsets", raising)
        with pytest.raises(Theirs) as raised, server.tensors.on(server.tensors.stream()):
            server.manager.copy_batch_block_offsets(server.tensors.on_device(1, 4, 2, 8), [], 1, 0, 0)
        assert raised.value is ERROR and raised.value.__context__ is None
        assert registry.report().of("staged-offsets-v1").faults == int(fault)
        monkeypatch.undo()
        server.close()


def test_torch_waits_where_we_cannot_and_if_nobody_can_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finishing, "_said", set())
    device, calls = native.open_device("cpu"), []
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: calls.append("torch")))
    with (
        caplog.at_level(logging.ERROR, logger="trtllm_kvfix"),
        failing("native.Device.synchronize", always=True),
        on_stream(device, device.create_stream()),
    ):
        monkeypatch.setitem(sys.modules, "torch", torch)
        finish()
        assert calls == ["torch"] and caplog.records == []
        torch.cuda.synchronize = raising
        finish()
        finish()
    assert len(caplog.records) == 1 and "could not be waited for" in caplog.records[0].getMessage()
