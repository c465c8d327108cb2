"""How many steps read what is wrong after one torn launch or copy, on upstream's own filter."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the rig needs torch, on the CPU")

from integration.upstream.launch_filter import STEP_PROLOGUE_TRIM  # noqa: E402
from integration.upstream.prologue_trim import STEADY, RefilledSteps  # noqa: E402
from integration.upstream.provided import BoundMissing, bound_module  # noqa: E402
from integration.upstream.running import run_all  # noqa: E402
from integration.upstream.server import upstream  # noqa: E402
from integration.upstream.test_upstream import PLACES  # noqa: E402

ROOTS = [pytest.param(root, id=era) for era, root in PLACES if era == "O"]
IN_ONE_STEP, TO_THE_NEXT_BLOCK = "wrong offsets (1): ", f"wrong offsets ({1 + STEADY}): "


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("torn", ["index", "rewritten"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("trim-off", IN_ONE_STEP),
        ("trim", TO_THE_NEXT_BLOCK),
        ("trim-verify", "died: StepPrologueTrimVerifyError: "),
    ],
)
def test_a_torn_launch_stays_where_equal_ones_are_skipped(root: Path, torn: str, name: str, told: str) -> None:
    try:
        bound_module()
    except BoundMissing as error:
        pytest.skip(str(error))
    found = {each.arm: each for each in run_all(root, "O", [f"{name}-{torn}"])}
    off = found.pop("off")
    assert off.remark.startswith(told) and "not pending" not in off.remark, off.remark
    assert {each.result for each in found.values()} == {"right"}


def another_batch(steps: RefilledSteps) -> None:
    steps.fill(2)
    steps.copy()


def another_batch_elsewhere(steps: RefilledSteps) -> None:
    steps.fill(2)
    steps.copy("other")


def cleared_first(steps: RefilledSteps) -> None:
    """The next step, whose values are the same, has begun to fill the source."""
    steps.fill(0)


BETWEEN = (another_batch, another_batch_elsewhere, cleared_first)


def wrong_steps(
    root: Path, mode: str, between: Callable[[RefilledSteps], None], monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> int | str:
    monkeypatch.setenv("TRTLLM_STEP_PROLOGUE_TRIM", mode)
    with upstream(root, "O") as (_, device, _logger):
        trim, steps = import_module(STEP_PROLOGUE_TRIM), RefilledSteps(device, tells=waits)
        steps.step()
        between(steps)
        device.settle()  # it comes to the first step's copy only now
        try:
            for _ in range(STEADY):
                steps.step()
        except trim.StepPrologueTrimVerifyError:
            return "ended by upstream"
        return steps.wrong()


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(
    ("mode", "between", "told"),
    [
        *(("0", each, 1) for each in BETWEEN),
        *((mode, another_batch, 1) for mode in ("1", "verify")),  # its copy takes the place of the record
        *(("1", each, 1 + STEADY) for each in (another_batch_elsewhere, cleared_first)),
        *(("verify", each, "ended by upstream") for each in (another_batch_elsewhere, cleared_first)),
    ],
)
def test_a_torn_copy_of_another_source_stays_where_no_copy_follows_the_writer(
    root: Path,
    mode: str,
    between: Callable[[RefilledSteps], None],
    told: int | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wrong_steps(root, mode, between, monkeypatch, waits=False) == told


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("between", BETWEEN)
def test_where_upstream_waits_no_copy_of_such_a_source_is_torn(
    root: Path, between: Callable[[RefilledSteps], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrong_steps(root, "1", between, monkeypatch, waits=True) == 0
