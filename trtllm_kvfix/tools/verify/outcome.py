"""Outcome of a run of `verify`. These models are also the JSON that `--json` prints."""

from enum import Enum

from pydantic import BaseModel, ConfigDict, computed_field

from trtllm_kvfix.hazards.case import ControlKind


class Verdict(str, Enum):
    PROVEN = "proven"  # the control corrupts, the fix does not
    VACUOUS = "vacuous"  # the control stayed clean, so a clean fix says nothing
    FIX_FAILED = "fix failed"
    NOT_HELD = "not held"  # the work under test was over when its source was overwritten


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceInfo(_Found):
    name: str
    simulated: bool
    has_kernels: bool
    has_batched_copy: bool
    passed_over: str | None  # the GPU that `auto` found and could not use


class Timeline(_Found):
    """One iteration, in microseconds since its gate was closed, by the clock of the host."""

    iteration: int  # from 1
    call_us: float
    returned_us: float
    disturb_us: float
    disturbed_us: float
    opened_us: float  # the work was seen pending for the last time, and the gate is opened
    held_done_us: float  # with two streams, the work behind the gate was seen done, so what waits for it may begin
    done_us: float  # everything was seen done: the device itself was done a little earlier


class Example(_Found):
    """The first wrong word of an iteration that was corrupt."""

    iteration: int
    index: list[int]
    expected: int
    found: int
    words_wrong: int
    words: int


class LaneOutcome(_Found):
    name: str
    work: str
    early: bool


class ArmOutcome(_Found):
    how: str
    meanwhile: str
    effect: str
    iterations: int
    corrupt: int
    pending: int  # iterations in which the work under test was seen pending before the gate was opened
    call_us_median: float
    lanes: list[LaneOutcome]
    timeline: Timeline
    example: Example | None


class CaseOutcome(_Found):
    case: str
    variant: str
    hazard: str
    title: str
    call: str
    control_kind: ControlKind
    control: ArmOutcome
    fixed: ArmOutcome
    half: ArmOutcome | None

    @property
    def arms(self) -> list[ArmOutcome]:
        return [arm for arm in (self.control, self.fixed, self.half) if arm is not None]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        if self.fixed.corrupt:
            return Verdict.FIX_FAILED
        if any(arm.pending < arm.iterations for arm in self.arms):
            return Verdict.NOT_HELD
        # The gate decides the order, not luck: a control that escapes once is not the hazard that it claims to be.
        return Verdict.VACUOUS if self.control.corrupt < self.control.iterations else Verdict.PROVEN


class Report(_Found):
    """`verify --json`."""

    version: str
    device: DeviceInfo
    iterations: int
    seed: int
    cases: list[CaseOutcome]
    cases_planned: int  # Ctrl-C leaves fewer, each of which ran to its end

    @computed_field  # type: ignore[prop-decorator]
    @property
    def partial(self) -> bool:
        return len(self.cases) < self.cases_planned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def proven(self) -> bool:
        return not self.partial and all(case.verdict is Verdict.PROVEN for case in self.cases)
