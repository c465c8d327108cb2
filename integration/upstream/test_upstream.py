"""Every scenario on every tree that is there: upstream fails where a hazard is, and nothing fails with the overlay.

KVFIX_UPSTREAM names the folder whose `trees` holds a tree for each era. UPSTREAM and UPSTREAM_ERA name one checkout and
whose bound classes it expects.
"""

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the rig needs torch, on the CPU")

from integration.upstream.__main__ import trees  # noqa: E402
from integration.upstream.provided import BoundMissing, bound_module  # noqa: E402
from integration.upstream.running import Result, heard, run_all  # noqa: E402
from integration.upstream.scenarios import SCENARIOS  # noqa: E402


def places() -> list[tuple[str, Path]]:
    if checkout := os.environ.get("UPSTREAM"):
        return trees(Path(checkout), os.environ.get("UPSTREAM_ERA", "D").split(","))
    cache = os.environ.get("KVFIX_UPSTREAM")
    return trees(Path(cache) / "trees", None) if cache and (Path(cache) / "trees").is_dir() else []


PLACES = places()
CASES = [
    pytest.param(era, root, scenario.name, id=f"{era}-{scenario.name}")
    for era, root in PLACES
    for scenario in SCENARIOS
    if era in scenario.eras
]


@pytest.mark.skipif(bool(PLACES), reason="a tree is there")
def test_no_tree_of_upstream_is_there() -> None:
    pytest.skip("set UPSTREAM to a checkout of TensorRT-LLM, or KVFIX_UPSTREAM to assembled trees")


@pytest.mark.parametrize(("era", "root", "name"), CASES)
def test_with_the_overlay_everything_is_right(era: str, root: Path, name: str) -> None:
    try:
        bound_module()
    except BoundMissing as error:
        pytest.skip(str(error))
    found: dict[str, Result] = {each.arm: each for each in run_all(root, era, [name])}
    off = found.pop("off")
    told: dict[str, Any] = {arm: (each.result, each.remark) for arm, each in found.items()}
    assert off.result == ("wrong" if off.hazard else "right"), f"upstream alone: {off.result}: {off.remark}"
    assert all(result == "right" for result, _ in told.values()), told


def test_where_a_fix_chooses_other_slots_their_numbers_alone_do_not_count() -> None:
    differing = next(each for each in SCENARIOS if each.slots_differ)
    first, other, longer, unlike = [
        [("update_state_after_alloc_by_layer_group", f"request 2, {slots}")]
        for slots in ("[[6, 5], [-1, 4]]", "[[6, 5], [-1, 6]]", "[[6, 5], [-1, 4, 3]]", "[[6, 5], [4, 3]]")
    ]
    assert heard(first, differing) == heard(other, differing)
    assert heard(first, differing) not in (heard(longer, differing), heard(unlike, differing))
    assert heard([("get_finished", "[], [2]")], differing) != heard([("get_finished", "[], [3]")], differing)
    assert heard(first, SCENARIOS[0]) != heard(other, SCENARIOS[0])
