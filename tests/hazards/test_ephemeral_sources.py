"""H13 on doubles of a driver: one that reads sources late, and those that do not. On a GPU: integration/gpu."""

import ctypes
from typing import Any, cast

import pytest

from tests.hazards.batch_driver import BatchDriver, OlderDriver, RefusingDriver
from trtllm_kvfix.hazards.case import Case, NotShown
from trtllm_kvfix.hazards.h13_ephemeral_sources import device
from trtllm_kvfix.hazards.h13_ephemeral_sources.device import CASES, NAME, Rewritten
from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.tools.verify.cases import run_case
from trtllm_kvfix.tools.verify.report import CaseOutcome, Verdict

NEVER = float("inf")
LATE = ("128 KiB", "256 KiB", "1024 KiB")


class Gpu:
    """The simulated device, which does not say so, with a driver."""

    simulated = False

    def __init__(self) -> None:
        self._device = open_device("cpu")
        self.driver = BatchDriver(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def open_gate(self, gate: int) -> None:
        self.driver.gate_opens()
        self._device.open_gate(gate)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(device, "open_driver", lambda: made.driver)
    return made


def why(case: Case, gpu: Gpu) -> NotShown | None:
    return case.not_shown(cast("Device", gpu))


def run(case: Case, gpu: Gpu, iterations: int) -> CaseOutcome:
    return run_case(cast("Device", gpu), case, iterations, 0, lambda: None)


@pytest.mark.parametrize("kind", [BatchDriver, OlderDriver])
def test_a_driver_that_reads_late_is_shown_from_that_size_on(kind: type[BatchDriver], gpu: Gpu) -> None:
    gpu.driver = kind(gpu._device)
    shown = [case for case in CASES if why(case, gpu) is None]
    assert [case.variant for case in shown] == [f"{size}, hint" for size in LATE] + list(LATE)
    for case in shown:
        found = run(case, gpu, 3)
        assert (found.control.corrupt, found.fixed.corrupt, found.verdict) == (3, 0, Verdict.PROVEN)
    assert gpu.driver.pushed == 0, "each context that was pushed is popped"


@pytest.mark.parametrize(
    ("waits", "said"), [(False, "this driver reads the source during the call"), (True, "this driver waits")]
)
@pytest.mark.parametrize("case", CASES[-2:], ids=lambda case: case.variant)
def test_a_driver_that_does_as_it_is_asked_has_nothing_to_show(case: Case, waits: bool, said: str, gpu: Gpu) -> None:
    gpu.driver = BatchDriver(gpu._device, late_from=NEVER, waits=waits)
    found = why(case, gpu)
    assert found is not None and found.looked
    assert found.why.startswith(said)


def test_a_fixed_arm_whose_snapshot_is_rewritten_is_seen(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewrite(arm: Rewritten) -> None:
        snapshot = getattr(arm, "_snapshot", None)
        (arm.source if snapshot is None else snapshot.array)[:] = arm.later

    monkeypatch.setattr(Rewritten, "disturb", rewrite)
    assert run(CASES[-1], gpu, 2).verdict is Verdict.FIX_FAILED


def test_the_simulated_device_is_not_asked() -> None:
    found = CASES[0].not_shown(open_device("cpu"))
    assert found == NotShown("a simulated device keeps to the order that it is given; ask the driver of a GPU", False)


def test_a_driver_that_refuses_the_copy_says_with_what(gpu: Gpu) -> None:
    gpu.driver = RefusingDriver(gpu._device)
    assert why(CASES[0], gpu) == NotShown("cuMemcpyBatchAsync failed with CUresult 1", False)
    assert gpu.driver.pushed == 0


def test_no_driver_and_one_that_is_too_old_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    monkeypatch.setattr(device, "LIBRARY", "libkvfix-not-there.so.1")
    found = why(CASES[0], gpu)
    assert found is not None and not found.looked and "libkvfix-not-there.so.1" in found.why
    monkeypatch.setattr(device, "LIBRARY", "libc.so.6")
    said = "libc.so.6 has no cuMemcpyBatchAsync, which came with the drivers of CUDA 12.8"
    assert why(CASES[0], gpu) == NotShown(said, False)


def test_the_attributes_are_laid_out_as_in_cuda_h() -> None:
    kind = device.Attributes
    assert (kind.source_order.offset, kind.source.offset, kind.destination.offset, kind.flags.offset) == (0, 4, 12, 20)
    assert ctypes.sizeof(kind) == 24


def test_the_cases_are_the_sizes_with_the_hint_and_without() -> None:
    assert {case.name for case in CASES} == {NAME}
    sizes = [int(case.variant.split()[0]) for case in CASES]
    assert sizes[:6] == sizes[6:] == sorted(sizes[:6])
