"""Each fix's own trial of its mechanism passes, and fails when the mechanism is taken away."""

from collections.abc import Callable
from typing import Any

import pytest

from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.fixes.token_budget.fitting import Plan
from trtllm_kvfix.overlay.fix import Fix
from trtllm_kvfix.staging import current_place


def test_each_record_has_the_id_of_its_room() -> None:
    assert tuple(fix.id for fix in ALL) == FIX_IDS


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_the_mechanism_holds_on_this_machine(fix: Fix) -> None:
    fix.self_test()


def from_the_live_table(destination: Any, index: Any, source: Any) -> None:
    """The V1 destination as upstream's own: the device reads the table when it gets there."""
    pool, rows = index
    memory = destination.tensor.memory
    row_bytes = memory.nbytes // memory.shape[0] // memory.shape[1]
    device, stream = current_place()
    device.copy(memory.address + pool * memory.shape[1] * row_bytes, source.data_ptr(), rows.stop * row_bytes, stream)


def by_the_kernel(_stagers: Any, _original: Any) -> Callable[..., Any]:
    """A V2 launch that leaves rows and copy index to upstream's kernel, which reads them when it runs."""

    def launch(table: Any, output: Any, index: Any, scales: Any, offsets: Any, stream: int) -> None:
        width, factors = output.memory.shape[3], (scales.tolist(), offsets.tolist())
        current_place().device.gather_host_rows(
            output.memory, table.memory, index.memory, len(index.numpy()), width, *factors, stream
        )

    return launch


def unfitted(*_: Any, **__: Any) -> Plan:
    return Plan((), (), 41, 41)


def as_it_was(*arguments: Any) -> Any:
    """What a replacement makes, had it made nothing: the original, which is the first or second argument."""
    return next(each for each in arguments if callable(each) and not isinstance(each, type))


BROKEN: dict[str, tuple[str, Callable[..., Any]]] = {
    "staged-offsets-v1": ("fixes.staged_offsets_v1.destination.StagedDestination.receive", from_the_live_table),
    "staged-offsets-v2": ("fixes.staged_offsets_v2.mechanism.staged_launch", by_the_kernel),
    "computed-blocks": ("fixes.computed_blocks.mechanism.ComputedBlocks.storing", as_it_was),
    "batched-admission": ("fixes.batched_admission.mechanism.line_up", lambda *_: None),
    "token-budget": ("fixes.token_budget.record.plan", unfitted),
    "concurrent-pins": ("fixes.concurrent_pins.mechanism.Turns.guarded", as_it_was),
    "input-copy-fence": ("fixes.input_copy_fence.mechanism.InputFence.wait", lambda *_: None),
    "graph-inputs": ("fixes.graph_inputs.reads.Reads.wait", lambda *_: None),
    "nixl-listener": ("fixes.nixl_listener.record.without_listener", as_it_was),
}


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_without_the_mechanism_the_trial_fails(fix: Fix, monkeypatch: pytest.MonkeyPatch) -> None:
    place, broken = BROKEN[fix.id]
    monkeypatch.setattr(f"trtllm_kvfix.{place}", broken)
    with pytest.raises(AssertionError):
        fix.self_test()
