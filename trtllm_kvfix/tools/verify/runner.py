"""Runs cases. Every iteration holds the device, overwrites the source, checks that the work is pending, and lets go."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import numpy as np

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, Side
from trtllm_kvfix.hazards.gates import Gates
from trtllm_kvfix.native import Device
from trtllm_kvfix.tools.verify.outcome import ArmOutcome, CaseOutcome, Example, LaneOutcome, Timeline


@dataclass(frozen=True)
class Iteration:
    timeline: Timeline
    pending: bool
    example: Example | None


class Clock:
    """Microseconds since it was made."""

    def __init__(self) -> None:
        self._start = perf_counter_ns()

    def __call__(self) -> float:
        return (perf_counter_ns() - self._start) / 1000


def run_case(device: Device, case: Case, iterations: int, seed: int, on_iteration: Callable[[], object]) -> CaseOutcome:
    def run(side: Side) -> ArmOutcome:
        return run_side(device, side, iterations, seed, on_iteration)

    return CaseOutcome(
        case=case.name,
        variant=case.variant,
        hazard=case.hazard,
        title=case.title,
        call=case.call,
        control_kind=case.control_kind,
        control=run(case.control),
        fixed=run(case.fixed),
        half=None if case.half is None else run(case.half),
    )


def run_side(device: Device, side: Side, iterations: int, seed: int, on_iteration: Callable[[], object]) -> ArmOutcome:
    """All iterations of one arm. It has drained when this returns, so that nothing of it can touch the next one."""
    arm = side.build(device, seed)
    event = device.create_event()
    done: list[Iteration] = []
    try:
        rehearse(arm)
        with Gates(device) as gates:
            for number in range(1, iterations + 1):
                done.append(run_iteration(gates, arm, event, number))
                on_iteration()
    finally:
        arm.settle()
        device.destroy_event(event)
        arm.close()
    return ArmOutcome(
        how=side.how,
        meanwhile=side.meanwhile,
        effect=side.effect,
        iterations=iterations,
        corrupt=sum(one.example is not None for one in done),
        pending=sum(one.pending for one in done),
        call_us_median=median(one.timeline.returned_us - one.timeline.call_us for one in done),
        lanes=[LaneOutcome(name=lane.name, work=lane.work, early=lane.early) for lane in arm.lanes()],
        timeline=typical(done),
        example=next((one.example for one in done if one.example is not None), None),
    )


def rehearse(arm: Arm) -> None:
    """Once with the gate open. A driver may load a kernel on its first use and wait for every stream to do so."""
    arm.prepare()
    arm.settle()
    arm.lead_in()
    arm.call()
    arm.disturb()
    arm.settle()


def run_iteration(gates: Gates, arm: Arm, event: int, number: int) -> Iteration:
    device = arm.device
    arm.prepare()
    arm.settle()
    clock = Clock()
    with gates.closed(arm.held):
        arm.lead_in()
        call = clock()
        arm.call()
        returned = clock()
        device.record(event, arm.held)
        disturb = clock()
        arm.disturb()
        disturbed = clock()
        pending = not device.done(event) and arm.waiting()
        opened = clock()
        gates.open()
    arm.wait_held()
    held_done = clock()
    arm.wait_free()
    done = clock()
    arm.settle()
    timeline = Timeline(
        iteration=number,
        call_us=call,
        returned_us=returned,
        disturb_us=disturb,
        disturbed_us=disturbed,
        opened_us=opened,
        held_done_us=held_done,
        done_us=done,
    )
    return Iteration(timeline, pending, first_wrong(arm.compare(), number))


def typical(iterations: Sequence[Iteration]) -> Timeline:
    """The iteration of median length, among the corrupt ones if there were any. It is a real one, not an average."""
    shown = [one for one in iterations if one.example is not None] or iterations
    by_length = sorted((one.timeline for one in shown), key=lambda timeline: timeline.done_us)
    return by_length[len(by_length) // 2]


def first_wrong(comparison: Comparison, iteration: int) -> Example | None:
    expected, found = comparison
    wrong = np.argwhere(expected != found)
    if not len(wrong):
        return None
    at = tuple(int(part) for part in wrong[0])
    return Example(
        iteration=iteration,
        index=list(at),
        expected=int(expected[at]),
        found=int(found[at]),
        words_wrong=len(wrong),
        words=int(expected.size),
    )
