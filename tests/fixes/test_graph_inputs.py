"""Tables that a graph reads are written behind its last replay, no later, and never before, whatever fails."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.executor.test_graph_inputs import HANDS_TABLES_TO_GRAPHS, LORA, serve
from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken
from tests.fixes.replay_loop import Loop
from tests.standin.serving import Server
from trtllm_kvfix import native
from trtllm_kvfix.fixes.graph_inputs.fix import ID, Reads
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse
from trtllm_kvfix.staging import on_stream

NO_LORA: dict[str, Any] = {}


@pytest.fixture
def loop() -> Iterator[Loop]:
    fuse.reset(ID)
    yield Loop()
    fuse.reset(ID)


def test_tables_are_written_behind_the_replay_and_the_wait_is_measured(loop: Loop) -> None:
    tables = loop.tables()
    before = counters.read()
    gate = loop.device.close_gate(loop.stream)
    loop.replay(tables)
    loop.require_write_waits(tables, gate)
    after = counters.read()
    assert after["replay_waits"] - before["replay_waits"] == 1
    assert after["replay_wait_seconds"] > before["replay_wait_seconds"]


def test_a_capture_runs_the_model_first_and_is_awaited_as_well(loop: Loop) -> None:
    tables = loop.tables()

    def original(_runner: Any, _key: Any, forward_fn: Callable[[Any], None], inputs: Any, **_: Any) -> None:
        forward_fn(inputs)

    def forward(_inputs: Any) -> None:
        loop.device.launch_graph(tables.graph, loop.stream)

    gate = loop.device.close_gate(loop.stream)
    with on_stream(loop.device, loop.stream):
        capture = loop.fence.capturing(original)
        capture(object(), "key", forward, tables.inputs(), enable_spec_decode=False, postprocess_fn=None)
    loop.require_write_waits(tables, gate)


def test_a_replay_that_raises_may_have_been_enqueued(loop: Loop) -> None:
    tables = loop.tables()

    def original(*_: Any) -> None:
        loop.device.launch_graph(tables.graph, loop.stream)
        raise ZeroDivisionError("upstream's own")

    gate = loop.device.close_gate(loop.stream)
    with on_stream(loop.device, loop.stream), pytest.raises(ZeroDivisionError, match="upstream's own"):
        loop.fence.replaying(original)(object(), "key", tables.inputs())
    loop.require_write_waits(tables, gate)


def test_what_comes_behind_the_replay_is_not_waited_for(loop: Loop) -> None:
    tables = loop.tables()
    loop.replay(tables)
    gate = loop.device.close_gate(loop.stream)
    loop.require_write_at_once(tables, 1)
    loop.device.open_gate(gate)
    assert loop.seen(tables) == 0


def test_a_replay_that_has_ended_costs_no_wait(loop: Loop) -> None:
    tables = loop.tables()
    loop.replay(tables)
    loop.device.synchronize(loop.stream)
    before = counters.read()["replay_waits"]
    gate = loop.device.close_gate(loop.stream)
    loop.require_write_at_once(tables, 1)
    loop.device.open_gate(gate)
    assert counters.read()["replay_waits"] == before


@pytest.mark.parametrize("inputs", [NO_LORA, {"lora_params": None}, {"lora_params": {0: {}}}])
def test_a_step_without_these_tables_is_not_waited_for(loop: Loop, inputs: dict[str, Any]) -> None:
    """A graph for batches without an adapter, and one of LoRA that is no graph's."""
    tables = loop.tables()
    gate = loop.device.close_gate(loop.stream)
    loop.replay(tables, inputs)
    loop.require_write_at_once(tables, 1)
    loop.device.open_gate(gate)


def test_another_engines_tables_are_not_waited_for(loop: Loop) -> None:
    one, other = loop.tables(), loop.tables()
    gate = loop.device.close_gate(loop.stream)
    loop.replay(one)
    loop.require_write_at_once(other, 1)
    loop.require_write_waits(one, gate)


def test_tables_that_no_graph_was_handed_cost_no_event(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without LoRA on experts, `get_moe_slot_inputs` has nothing to give or is not called."""
    tables = loop.tables(handed_out=False)
    monkeypatch.setattr(native.StreamMarks, "record", None)
    gate = loop.device.close_gate(loop.stream)
    loop.replay(tables)
    loop.require_write_at_once(tables, 1)
    loop.device.open_gate(gate)
    assert fuse.of(ID).faults == 0


def test_a_graph_that_was_captured_before_the_fix_came_is_awaited_too(loop: Loop) -> None:
    tables = loop.tables(handed_out=False)
    tables._moe_slot_cache = {(0, 0): "tables"}
    gate = loop.device.close_gate(loop.stream)
    with on_stream(loop.device, loop.stream):
        loop.device.launch_graph(tables.graph, loop.stream)  # nobody marks this one
    loop.require_write_waits(tables, gate)


# ---- our own code fails ----


def broken(*_: Any) -> Any:
    raise RuntimeError("ours")


def test_without_a_mark_the_whole_stream_is_awaited(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = loop.tables()
    gate = loop.device.close_gate(loop.stream)
    with monkeypatch.context() as patch:
        patch.setattr(native.StreamMarks, "record", broken)
        loop.replay(tables)
    loop.require_write_waits(tables, gate)
    assert fuse.of(ID).faults == 1


def test_where_the_wait_fails_the_whole_stream_is_awaited(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = loop.tables()
    monkeypatch.setattr(native.StreamMarks, "wait", broken)
    gate = loop.device.close_gate(loop.stream)
    loop.replay(tables)
    loop.require_write_waits(tables, gate)
    assert fuse.of(ID).faults == 1


def test_inputs_of_a_shape_that_nobody_knows_count_as_everybodys(loop: Loop) -> None:
    tables = loop.tables()
    gate = loop.device.close_gate(loop.stream)
    loop.replay(tables, "no mapping")
    loop.require_write_waits(tables, gate)
    assert fuse.of(ID).faults == 1


def test_after_repeated_faults_it_stands_down_to_the_wait_for_the_stream(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = loop.tables()
    monkeypatch.setattr(native.StreamMarks, "record", broken)
    for number in range(fuse.IN_A_ROW_MAX):
        loop.replay(tables)
        loop.write(tables, number)
    assert fuse.of(ID).blown
    tables.written.clear()
    gate = loop.device.close_gate(loop.stream)
    loop.replay(tables)
    loop.require_write_waits(tables, gate)
    assert fuse.of(ID).faults == fuse.IN_A_ROW_MAX, "no mark is tried any more"


def test_a_wait_that_succeeds_makes_the_next_fault_the_first_in_a_row(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = loop.tables()
    for number in range(fuse.IN_A_ROW_MAX):
        with monkeypatch.context() as patch:
            patch.setattr(native.StreamMarks, "record", broken)
            loop.replay(tables)
        loop.write(tables, number)
        loop.replay(tables)
        loop.write(tables, number)
    assert not fuse.of(ID).blown and fuse.of(ID).faults == fuse.IN_A_ROW_MAX


def test_where_our_device_fails_altogether_torch_waits_for_the_whole_gpu(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: waited.append("gpu")))
    monkeypatch.setitem(sys.modules, "torch", torch)
    for ours in ("native.StreamMarks.record", "fixes.waits.current_place"):
        monkeypatch.setattr(f"trtllm_kvfix.{ours}", broken)
    tables = loop.tables()
    loop.replay(tables)
    loop.write(tables, 1)
    assert waited == ["gpu"]


# ---- in the executor ----


@pytest.mark.parametrize("variant", HANDS_TABLES_TO_GRAPHS)
def test_graphs_read_their_own_steps_tables_with_the_fix_and_anothers_without(variant: str) -> None:
    def corrupt() -> int:
        server = Server(LORA)
        assert serve(server) > 0
        return len(server.witness.corrupt("lora slots")) + len(server.witness.corrupt("lora weights"))

    with standing_in(variant):
        assert corrupt() > 0
        waits = counters.read()["replay_waits"]
        with applied([ID]):
            assert corrupt() == 0
            assert fuse.of(ID).faults == 0
        assert counters.read()["replay_waits"] > waits
        assert corrupt() > 0


def test_the_input_copy_fence_of_upstream_and_ours_do_not_cover_what_graphs_read() -> None:
    """Otherwise this fix would guard nothing. In D upstream has its own fence, before the replay."""
    with standing_in("D"), applied([]):
        server = Server(LORA)
        serve(server)
        assert server.witness.corrupt("lora slots")
        assert server.witness.corrupt("prompt lens") == []


def test_every_seam_of_upstream_is_replaced() -> None:
    with standing_in("D"), applied([ID]) as registry:
        seams = {name.partition(":")[2] for name in registry.report().of(ID).seams}
    writers = {"update_sorted_indices", "update_weight_pointers", "get_moe_slot_inputs"}
    assert seams == {f"CudaGraphLoraParams.{name}" for name in writers} | {
        "CUDAGraphRunner.replay",
        "CUDAGraphRunner.capture",
    }


WRITERS: list[Callable[[Any], None]] = [
    lambda params: params.update_sorted_indices([0], tokens_per_seq=1),
    lambda params: params.update_weight_pointers({}, (None,)),
]


@pytest.mark.parametrize("write", WRITERS, ids=["update_sorted_indices", "update_weight_pointers"])
def test_every_writer_of_upstream_waits(write: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Reads] = []
    monkeypatch.setattr(Reads, "wait", lambda self: waits.append(self))  # noqa: PLW0108  binds, as a method does
    with standing_in("D"), applied([ID]):
        params = import_module("tensorrt_llm._standin.lora").tables(max_batch_size=1, max_lora_size=1, max_rank=1)
        write(params)
        assert waits == []
        params.get_moe_slot_inputs(0, 0)
        write(params)
        assert len(waits) == 1


def test_reads_go_with_their_tables(loop: Loop) -> None:
    tables = loop.tables()
    assert len(loop.fence._reads) == 1
    del tables
    assert len(loop.fence._reads) == 0


# ---- for the tests of all fixes (proofs.py) ----

ROOM = "fixes.graph_inputs"
BROKEN = Broken(f"{ROOM}.fix.Reads.wait", lambda *_: None)


def replay_graphs(_: Fault) -> None:
    server = Server(LORA)
    assert serve(server) > 0
    assert [*server.witness.corrupt("lora slots"), *server.witness.corrupt("lora weights")] == []


CALLS = (
    *(f"{ROOM}.fix.{name}" for name in ("ReplayFence._reads_of", "wait_for")),
    *(f"native.StreamMarks.{name}" for name in ("record", "wait")),
)

PLACES = tuple(Fault(name, variant, replay_graphs) for variant in HANDS_TABLES_TO_GRAPHS for name in CALLS)
