"""The report says in words what was shown."""

from trtllm_kvfix.hazards.case import ControlKind
from trtllm_kvfix.tools.verify.cases import CASES
from trtllm_kvfix.tools.verify.report import CaseNotShown, DeviceInfo, complaints, conclusion, headline, notes, page

from .doubles import arm, outcome, report

PROVEN = outcome(arm(corrupt=4), arm())


def test_a_gpu_proves_more_than_the_simulated_device_and_not_everything() -> None:
    said = conclusion(report(PROVEN, simulated=False, name="NVIDIA X"))
    assert said.startswith("Proven on NVIDIA X with the driver of this machine: in 1 of 1 case, of ")
    assert "Not proven: anything about your TensorRT-LLM, which verify does not load" in said


def test_the_simulated_device_proves_neither_a_gpu_nor_tensorrt_llm() -> None:
    said = conclusion(report(PROVEN))
    assert said.startswith("Proven on a simulated device, so for the order of operations alone: ")
    assert "anything about a GPU" in said and "TensorRT-LLM, which verify does not load" in said


def test_a_control_that_is_not_upstreams_order_is_not_called_so() -> None:
    kinds = [PROVEN.model_copy(update={"control_kind": kind}) for kind in ControlKind]
    assert "upstream's order" not in conclusion(report(*kinds))
    (said,) = (line for line in notes(report(*kinds)) if line.startswith("Controls: "))
    for kind in ControlKind:
        assert f"1 {kind.said}" in said


def test_the_catalogue_calls_each_control_what_it_is() -> None:
    found = {case.name: case.control_kind for case in CASES if case.hazard != "H13"}
    upstream = ("offsets-v1", "offsets-v2-index", "offsets-v2-rebound", "graph-inputs")
    assert found == {
        **dict.fromkeys(upstream, ControlKind.UPSTREAM),
        "offsets-v2-dropped": ControlKind.REPAIR,
        **dict.fromkeys(("store-order", "load-order"), ControlKind.NO_EVENT),
        **dict.fromkeys(("connector-store", "connector-load"), ControlKind.WRONG_STREAM),
    }
    of_drivers = [case.control_kind for case in CASES if case.hazard == "H13"]
    assert of_drivers == [ControlKind.UPSTREAM] * 6 + [ControlKind.REPAIR] * 6
    for case in CASES:
        is_upstream = case.control_kind is ControlKind.UPSTREAM
        assert case.control.how.startswith("As upstream") == is_upstream


def test_an_interrupt_is_said_and_is_no_proof() -> None:
    cut = report(PROVEN).model_copy(update={"cases_planned": 3})
    assert conclusion(cut).startswith("Interrupted after 1 of 3 cases. Proven ")
    assert not cut.proven


def absent(variant: str, *, looked: bool) -> CaseNotShown:
    return CaseNotShown(case="a-case", variant=variant, hazard="H13", why="the driver is right", looked=looked)


def test_what_is_not_shown_is_listed_once_for_each_reason_and_fails_nothing() -> None:
    found = report(PROVEN).model_copy(update={"not_shown": [absent("one", looked=True), absent("two", looked=True)]})
    found = found.model_copy(update={"cases_planned": 3})
    assert found.proven and not found.partial
    assert "Not shown: a-case (one; two): the driver is right." in list(notes(found))
    assert "Proven on " in conclusion(found) and "in 1 of 1 case" in conclusion(found)


def test_where_nothing_is_shown_nothing_is_called_proven() -> None:
    found = report().model_copy(update={"not_shown": [absent("one", looked=True)], "cases_planned": 1})
    assert conclusion(found).startswith("This machine has nothing to show here, and the reasons stand below.")
    assert headline(found) == "On a simulated device, there is nothing to show here."
    assert "every control corrupts" not in page(found)


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
