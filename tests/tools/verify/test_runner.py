"""The runner: what it judges, that it drains, and that it never leaves a stream held."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from trtllm_kvfix.hazards.case import Comparison
from trtllm_kvfix.hazards.h1_block_offsets_v1.device import InPlace, RefilledTable
from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.tools.verify.cases import Iteration, first_wrong, run_case, run_side, typical
from trtllm_kvfix.tools.verify.report import Verdict

from .doubles import AT, arm, named, outcome


def refilled(kind: type[RefilledTable], device: Device, seed: int) -> RefilledTable:
    return kind(device, seed, InPlace(device))


class Stumbling(RefilledTable):
    def disturb(self) -> None:
        raise ZeroDivisionError("in the middle of an iteration, with the gate closed")


class NotHeld(RefilledTable):
    def waiting(self) -> bool:
        return False


class Ending(RefilledTable):
    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed, InPlace(device))
        self.ended: list[str] = []

    def settle(self) -> None:
        super().settle()
        self.ended.append("settled")

    def close(self) -> None:
        super().close()
        self.ended.append("closed")


@pytest.mark.parametrize("raised", [None, ZeroDivisionError])
def test_an_arm_drains_before_what_it_owns_is_given_back(raised: type[Exception] | None) -> None:
    arm = Ending(open_device("cpu"), 0)
    with suppress(ZeroDivisionError), arm:
        arm.prepare()
        arm.call()
        if raised is not None:
            raise raised
    assert arm.ended == ["settled", "closed"]


def test_a_side_is_run_by_an_arm_that_is_given_back_once() -> None:
    arm = Ending(open_device("cpu"), 0)
    run_side(arm.device, replace(named("offsets-v1").control, build=lambda *_: arm), 2, 0, lambda: None)
    assert arm.ended[-2:] == ["settled", "closed"] and arm.ended.count("closed") == 1


def test_an_error_in_an_iteration_opens_the_gate_and_is_passed_on() -> None:
    device = open_device("cpu")
    side = replace(named("offsets-v1").control, build=partial(refilled, Stumbling))
    with pytest.raises(ZeroDivisionError):
        run_side(device, side, 3, 0, lambda: None)  # would hang where the stream is destroyed, were it still held


def test_work_that_does_not_wait_makes_the_case_not_held() -> None:
    case = named("offsets-v1")
    case = replace(case, control=replace(case.control, build=partial(refilled, NotHeld)))
    found = run_case(open_device("cpu"), case, 3, 0, lambda: None)
    assert found.control.pending == 0
    assert found.verdict is Verdict.NOT_HELD


def test_every_iteration_of_every_arm_is_reported() -> None:
    done = []
    run_case(open_device("cpu"), named("store-order", "writer, any"), 2, 0, lambda: done.append(1))
    assert len(done) == 3 * 2


def test_first_wrong_says_where_and_how_much() -> None:
    expected = np.array([[1, 2], [3, 4]], np.int32)
    found = np.array([[1, 2], [9, 8]], np.int32)
    wrong = first_wrong(Comparison(expected, found), 7)
    assert wrong is not None
    assert (wrong.iteration, wrong.index, wrong.expected, wrong.found) == (7, [1, 0], 3, 9)
    assert (wrong.words_wrong, wrong.words) == (2, 4)
    assert first_wrong(Comparison(expected, expected.copy()), 1) is None


def test_typical_is_the_median_of_the_corrupt_ones_where_there_are_any() -> None:
    wrong = arm(corrupt=1).example
    lengths = [(5.0, wrong), (100.0, None), (7.0, wrong), (1.0, None), (9.0, wrong)]
    iterations = [Iteration(AT.model_copy(update={"done_us": us}), True, example) for us, example in lengths]
    assert typical(iterations).done_us == 7.0
    assert typical([one for one in iterations if one.example is None]).done_us == 100.0


@pytest.mark.parametrize(
    ("control", "fixed", "verdict"),
    [
        (arm(corrupt=4), arm(), Verdict.PROVEN),
        (arm(corrupt=3), arm(), Verdict.VACUOUS),
        (arm(corrupt=0), arm(), Verdict.VACUOUS),
        (arm(corrupt=4), arm(corrupt=1), Verdict.FIX_FAILED),
        (arm(corrupt=0), arm(corrupt=1), Verdict.FIX_FAILED),
        (arm(corrupt=4, pending=3), arm(), Verdict.NOT_HELD),
        (arm(corrupt=4), arm(pending=3), Verdict.NOT_HELD),
    ],
)
def test_verdicts(control: object, fixed: object, verdict: Verdict) -> None:
    assert outcome(control, fixed).verdict is verdict  # type: ignore[arg-type]


def test_half_a_fix_is_not_judged_by_what_it_lets_through() -> None:
    assert outcome(arm(corrupt=4), arm(), arm(corrupt=2)).verdict is Verdict.PROVEN
    assert outcome(arm(corrupt=4), arm(), arm(pending=2)).verdict is Verdict.NOT_HELD
