"""How many steps read wrong pages after one torn launch, on upstream's own filter."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the rig needs torch, on the CPU")

from integration.upstream.prologue_trim import STEADY  # noqa: E402
from integration.upstream.provided import BoundMissing, bound_module  # noqa: E402
from integration.upstream.running import run_all  # noqa: E402
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
