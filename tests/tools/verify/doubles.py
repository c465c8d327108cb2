"""Arms that are not what they claim to be, and reports made by hand."""

from dataclasses import replace

from trtllm_kvfix.hazards.case import Case, ControlKind, Lane, Side
from trtllm_kvfix.hazards.h2_block_offsets_v2.device import CachingHostAllocator, DroppedSnapshot, NextCall
from trtllm_kvfix.native import Device, PinnedArray
from trtllm_kvfix.tools.verify.cases import CASES
from trtllm_kvfix.tools.verify.report import (
    ArmOutcome,
    CaseOutcome,
    DeviceInfo,
    Example,
    Timeline,
    VerifyReport,
)


class Recording(CachingHostAllocator):
    """Learns of the kernel, as if that recorded itself, and gives none of its blocks to the next call."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._recorded: list[PinnedArray] = []

    def give_back(self, block: PinnedArray) -> None:
        self._recorded.append(block)  # the kernel still reads it


def recorded_snapshot(device: Device, seed: int) -> NextCall:
    """It looks like the broken repair."""
    shipper = DroppedSnapshot(device)
    shipper.allocator = Recording(device)
    return NextCall(device, seed, shipper)


def named(name: str, variant: str | None = None) -> Case:
    return next(case for case in CASES if case.name == name and variant in (None, case.variant))


def with_build(side: Side, other: Side) -> Side:
    return replace(side, build=other.build)


def vacuous() -> Case:
    """A case whose control is secretly safe."""
    case = named("offsets-v2-dropped")
    return replace(case, control=replace(case.control, build=recorded_snapshot))


def unfixed() -> Case:
    """A case whose fixed arm is as broken as its control."""
    case = named("offsets-v1")
    return replace(case, fixed=with_build(case.fixed, case.control))


AT = Timeline(
    iteration=3,
    call_us=10.0,
    returned_us=20.0,
    disturb_us=22.0,
    disturbed_us=40.0,
    opened_us=50.0,
    held_done_us=70.0,
    done_us=90.0,
)


def arm(*, corrupt: int = 0, pending: int = 4, lanes: tuple[Lane, ...] | None = None) -> ArmOutcome:
    return ArmOutcome(
        how="how it is done",
        meanwhile="what happens meanwhile",
        effect="what comes of it",
        iterations=4,
        corrupt=corrupt,
        pending=pending,
        call_us_median=12.5,
        lanes=list(lanes or (Lane(name="stream", work="copy", early=False),)),
        timeline=AT,
        example=Example(iteration=1, index=[0, 7], expected=11, found=22, words_wrong=5, words=64) if corrupt else None,
    )


def outcome(control: ArmOutcome, fixed: ArmOutcome, half: ArmOutcome | None = None) -> CaseOutcome:
    return CaseOutcome(
        case="a-case",
        variant="a variant",
        hazard="H1",
        title="A title",
        call="what is called",
        control_kind=ControlKind.UPSTREAM,
        control=control,
        fixed=fixed,
        half=half,
    )


def report(*cases: CaseOutcome, simulated: bool = True, name: str = "a device") -> VerifyReport:
    device = DeviceInfo(name=name, simulated=simulated, has_kernels=True, has_batched_copy=True, passed_over=None)
    return VerifyReport(
        version="1.2.3", device=device, iterations=4, seed=0, cases=list(cases), not_shown=[], cases_planned=len(cases)
    )
