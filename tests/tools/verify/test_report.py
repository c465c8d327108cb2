"""What the report says in words."""

from trtllm_kvfix.tools.verify.outcome import DeviceInfo
from trtllm_kvfix.tools.verify.report import complaints, conclusion, notes

from .doubles import arm, outcome, report

PROVEN = outcome(arm(corrupt=4), arm())


def test_a_gpu_proves_more_than_the_simulated_device_and_not_everything() -> None:
    said = conclusion(report(PROVEN, simulated=False, name="NVIDIA X"))
    assert said.startswith("Proven on NVIDIA X with the driver of this machine: in 1 of 1 cases ")
    assert said.endswith("Not proven: that your TensorRT-LLM works in upstream's order; nothing here loads it.")


def test_only_proven_cases_are_counted_as_such() -> None:
    mixed = report(PROVEN, outcome(arm(corrupt=0), arm()))
    assert "in 1 of 2 cases" in conclusion(mixed)
    assert not mixed.proven
    assert len(list(complaints(mixed))) == 1


def test_each_failing_verdict_has_its_complaint() -> None:
    bad = report(
        outcome(arm(corrupt=4), arm(corrupt=1)),
        outcome(arm(corrupt=4, pending=1), arm()),
        outcome(arm(corrupt=3), arm()),
    )
    assert [line.split(":")[0] for line in complaints(bad)] == ["FAILED", "NOT HELD", "VACUOUS"]
    assert list(complaints(report(PROVEN))) == []


def test_notes_name_half_a_fix_and_what_the_device_lacks() -> None:
    device = DeviceInfo(name="x", simulated=True, has_kernels=True, has_batched_copy=False, passed_over="a GPU")
    half = report(outcome(arm(corrupt=4), arm(), arm(corrupt=2))).model_copy(update={"device": device})
    said = "\n".join(notes(half))
    assert "a-case (a variant), half of the fix, not judged: 2/4 corrupt" in said
    assert "a GPU was passed over" in said
    assert "no batched copy" in said
