"""Every case on the simulated device: the control corrupts every time, the fix never, and the device was held."""

import numpy as np
import pytest

from trtllm_kvfix.fixes.graph_inputs.fix import Reads
from trtllm_kvfix.hazards.case import Case
from trtllm_kvfix.hazards.h2_block_offsets_v2.device import kernel_output
from trtllm_kvfix.hazards.h5_transfer_order.device import Ordered, Unordered
from trtllm_kvfix.native import open_device
from trtllm_kvfix.tools.verify.cases import CASES, NAMES, run_case, select
from trtllm_kvfix.tools.verify.report import Verdict

from .doubles import named, unfixed, vacuous

ITERATIONS = 6
SIMULATED = [case for case in CASES if case.not_shown(open_device("cpu")) is None]
each_case = pytest.mark.parametrize("case", SIMULATED, ids=lambda case: f"{case.name}, {case.variant}")


def nothing() -> None:
    """Nobody watches the progress."""


@each_case
@pytest.mark.parametrize("seed", [0, 1])
def test_control_corrupts_every_time_and_the_fix_never(case: Case, seed: int) -> None:
    found = run_case(open_device("cpu", seed=seed), case, ITERATIONS, seed, nothing)
    assert (found.control.corrupt, found.fixed.corrupt) == (ITERATIONS, 0)
    assert [arm.pending for arm in found.arms] == [ITERATIONS] * len(found.arms)
    assert found.verdict is Verdict.PROVEN


@each_case
def test_the_disturbance_lies_between_the_call_and_the_opening_of_the_gate(case: Case) -> None:
    found = run_case(open_device("cpu", seed=0), case, 2, 0, nothing)
    for arm in found.arms:
        at = arm.timeline
        moments = [
            at.call_us,
            at.returned_us,
            at.disturb_us,
            at.disturbed_us,
            at.opened_us,
            at.held_done_us,
            at.done_us,
        ]
        assert moments == sorted(moments)
        assert at.disturb_us < at.disturbed_us


def test_an_edge_with_source_order_any_is_half_a_fix() -> None:
    case = named("store-order", "writer, any")
    found = run_case(open_device("cpu", seed=0), case, 40, 0, nothing)
    assert found.half is not None
    assert 0 < found.half.corrupt < 40, "the simulated driver reads early as often as not"
    assert found.verdict is Verdict.PROVEN


def test_a_control_that_is_secretly_safe_is_vacuous() -> None:
    found = run_case(open_device("cpu", seed=0), vacuous(), ITERATIONS, 0, nothing)
    assert found.control.corrupt == 0
    assert found.verdict is Verdict.VACUOUS


def test_a_fix_that_does_not_hold_is_seen() -> None:
    found = run_case(open_device("cpu", seed=0), unfixed(), ITERATIONS, 0, nothing)
    assert found.fixed.corrupt == ITERATIONS
    assert found.verdict is Verdict.FIX_FAILED


@pytest.mark.parametrize("case", select(("store-order", "load-order")), ids=lambda case: f"{case.name}, {case.variant}")
def test_a_fix_that_lacks_its_edge_is_seen(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ordered, "move", Unordered.move)
    found = run_case(open_device("cpu", seed=0), case, 25, 0, nothing)
    assert found.fixed.corrupt > 0
    assert found.verdict is Verdict.FIX_FAILED


def test_a_fix_that_does_not_wait_for_the_graph_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reads, "wait", lambda _: None)
    found = run_case(open_device("cpu", seed=0), named("graph-inputs"), ITERATIONS, 0, nothing)
    assert (found.fixed.corrupt, found.fixed.pending) == (ITERATIONS, 0)
    assert found.verdict is Verdict.FIX_FAILED


def test_corrupt_words_are_those_of_the_next_batch() -> None:
    """In V1 the destination of batch A holds batch B, in the first word as in all others."""
    found = run_case(open_device("cpu", seed=0), named("offsets-v1"), 1, 0, nothing)
    example = found.control.example
    assert example is not None
    _rehearsed, drawn = np.random.default_rng(0).integers(1, 1 << 20, (2, 2, 2, 8, 2, 64), np.int32)
    assert (example.expected, example.found) == (drawn[0].flat[0], drawn[1].flat[0])
    assert example.words_wrong == np.count_nonzero(drawn[0] != drawn[1])


def test_kernel_output_scales_pages_and_turns_bad_ones_into_zero() -> None:
    pages = np.array([[[5, -1]], [[7, 8]]], np.int32)  # (pools, rows, blocks)
    assert kernel_output(pages).tolist() == [[[[10, 0], [11, 0]]], [[[42, 48], [45, 51]]]]


def test_what_the_simulated_device_does_not_show_is_up_to_a_driver() -> None:
    assert {case.hazard for case in CASES if case not in SIMULATED} == {"H13"}


def test_select_keeps_the_order_of_the_catalogue() -> None:
    assert select(()) == list(CASES)
    assert [case.name for case in select(("store-order", "offsets-v1"))] == ["offsets-v1"] * 2 + ["store-order"] * 3
    assert len(NAMES) == len(set(NAMES)) == 10
