"""All cases, and how one is run: every iteration holds the device, overwrites the source, and lets go."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import numpy as np

from trtllm_kvfix.errors import KvfixError
from trtllm_kvfix.fixes.graph_inputs.fix import ReplayFence
from trtllm_kvfix.hazards.case import Arm, Case, Comparison, Side, played
from trtllm_kvfix.hazards.ground import Watchdog, held
from trtllm_kvfix.hazards.h1_block_offsets_v1 import device as offsets_v1
from trtllm_kvfix.hazards.h2_block_offsets_v2 import device as offsets_v2
from trtllm_kvfix.hazards.h5_transfer_order import device as transfer_order
from trtllm_kvfix.hazards.h9_graph_inputs import device as graph_inputs
from trtllm_kvfix.hazards.h13_ephemeral_sources import device as ephemeral_sources
from trtllm_kvfix.native import Device
from trtllm_kvfix.tools.verify.report import ArmOutcome, CaseOutcome, Example, Timeline

CASES: tuple[Case, ...] = (
    *offsets_v1.CASES,
    *offsets_v2.CASES,
    *transfer_order.CASES,
    graph_inputs.case(ReplayFence),
    *ephemeral_sources.CASES,
)
NAMES = tuple(dict.fromkeys(case.name for case in CASES))


def select(names: Sequence[str]) -> list[Case]:
    """The cases of these names, in the order of the catalogue; all of them where no name is given."""
    return [case for case in CASES if not names or case.name in names]


LOOK_S = 10.0  # an iteration takes well under a millisecond


class StuckBehindGate(KvfixError):
    """The host waited for a stream that only the host could have let go."""


@dataclass(frozen=True)
class Iteration:
    timeline: Timeline
    pending: bool
    example: Example | None


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
    """All iterations of one arm."""
    done: list[Iteration] = []
    with side.build(device, seed) as arm:
        # Once with the gate open. A driver may load a kernel on its first use, and wait for every stream to do so.
        played(arm, nullcontext())
        with Watchdog(LOOK_S) as watchdog:
            for number in range(1, iterations + 1):
                done.append(run_iteration(watchdog, arm, number))
                on_iteration()
    return ArmOutcome(
        how=side.how,
        meanwhile=side.meanwhile,
        effect=side.effect,
        iterations=iterations,
        corrupt=sum(one.example is not None for one in done),
        pending=sum(one.pending for one in done),
        call_us_median=median(one.timeline.returned_us - one.timeline.call_us for one in done),
        lanes=list(arm.lanes),
        timeline=typical(done),
        example=next((one.example for one in done if one.example is not None), None),
    )


def run_iteration(watchdog: Watchdog, arm: Arm, number: int) -> Iteration:
    at: dict[str, int] = {}
    hold = watchdog.holding(held(arm.device, arm.held))
    comparison, pending = played(arm, hold, lambda moment: at.update({moment: perf_counter_ns()}))
    if watchdog.too_late.is_set():
        raise StuckBehindGate(
            f"the host waited for a held stream for more than {LOOK_S:g} s; what it calls must return while the stream "
            "is pending. Usual cause: a ring without a free slot, or a driver that waits for every stream"
        )
    closed = at.pop("closed")
    timeline = Timeline(iteration=number, **{f"{moment}_us": (ns - closed) / 1000 for moment, ns in at.items()})
    return Iteration(timeline, pending, first_wrong(comparison, number))


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
