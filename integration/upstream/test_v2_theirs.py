"""Scenarios of V2's newest manager run on upstream's own runtime, where its files are there."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="the rig needs torch, on the CPU")

from integration.upstream.running import Result, apart  # noqa: E402
from integration.upstream.scenarios import SCENARIOS  # noqa: E402
from integration.upstream.server import Shape  # noqa: E402
from integration.upstream.v2_driver import FOLDER  # noqa: E402
from integration.upstream.v2_server import V2Server  # noqa: E402
from integration.upstream.v2_theirs import (  # noqa: E402
    BESIDE_TREES,
    UPSTREAMS,
    CannotRun,
    CopiesLast,
    TheirRuntime,
    root_of_runtime,
    runtime_for,
)

CACHE = os.environ.get("KVFIX_UPSTREAM", "")
ERAS = [era for era in ("N", "O") if CACHE and Path(CACHE, "trees", era).is_dir()]
PAGE = 2 << 20  # of the first layer; its pages lie one behind the other
ALIKE = Shape(windows=(64, 16, 16))
NAMES = ["v2-loop-suspended", "v2-loop-groups", "v2-loop-ours-groups", "v2-ours-full-pool", "connector-ours-v2"]
pytestmark = pytest.mark.skipif(
    not CACHE or not Path(CACHE, BESIDE_TREES, FOLDER).is_dir(), reason="KVFIX_UPSTREAM lacks V2's runtime"
)


def play(era: str, name: str, make: Any = None) -> Result:
    scenario = next(each for each in SCENARIOS if each.name == name)
    return apart(Path(CACHE, "trees", era), era, scenario, "all", make)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", NAMES)
def test_pages_of_upstreams_own_runtime_are_right(era: str, name: str) -> None:
    seen = play(era, name)
    assert (seen.result, seen.remark, seen.tree["v2_runtime"]) == ("right", "", UPSTREAMS)


def from_another_page(copied: Any) -> Any:
    def copy(self: TheirRuntime, kind: str, source: int, target: int) -> None:
        copied(self, kind, source ^ PAGE if kind == "host to device" else source, target)

    return copy


@pytest.mark.parametrize("era", ERAS)
def test_the_judge_sees_a_page_that_comes_back_from_another(era: str) -> None:
    def mistaken(*given: Any) -> V2Server:
        with mock.patch.object(TheirRuntime, "copied", from_another_page(TheirRuntime.copied)):
            return V2Server(*given)

    assert "reads another prefix" in play(era, "v2-loop-suspended", mistaken).remark


class WaitsForNothing(CopiesLast):
    def wait(self, stream: int, event: int) -> None:
        """Goes on."""


@pytest.mark.parametrize("era", ERAS)
def test_the_judge_sees_steps_that_wait_for_no_copy(era: str) -> None:
    """Copies run so late that each of these waits is needed."""

    def hasty(*given: Any) -> V2Server:
        with mock.patch.object(TheirRuntime, "ordered", WaitsForNothing):
            return V2Server(*given)

    assert "reads another prefix" in play(era, "v2-loop-suspended", hasty).remark


@pytest.mark.parametrize("era", ERAS)
def test_the_judge_sees_a_cache_that_is_left(era: str) -> None:
    def forgetful(*given: Any) -> V2Server:
        server = V2Server(*given)
        server.manager.kv_cache_map[99] = server.manager.impl.create_kv_cache((None, None), [])
        server.manager.kv_cache_map[99].resume(server.stream.cuda_stream)
        server.manager.kv_cache_map[99].resize(8)
        server.manager.kv_cache_map[99].suspend()
        return server

    assert "blocks" in play(era, "v2-loop-plain", forgetful).remark


def test_ours_runs_where_upstreams_cannot_and_the_report_says_why() -> None:
    tree = SimpleNamespace(root=Path(CACHE, BESIDE_TREES))
    assert runtime_for(tree, ALIKE, 1).order is None
    assert tree.v2_runtime == "ours, since it keeps layers that slide alike in one group"


def test_no_scenario_needs_ours() -> None:
    of_v2 = [each for each in SCENARIOS if each.kind in ("v2", "v2-awaited", "v2-newest", "v2-steps")]
    assert of_v2 and all(len(set(each.shape.windows)) == len(each.shape.windows) for each in of_v2)


def test_a_tree_without_its_files_has_none(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="its files are not there"):
        root_of_runtime(tmp_path / "trees" / "O")


def test_a_runtime_that_wants_more_than_the_doubles_have_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "_core").mkdir(parents=True)
    with pytest.raises(CannotRun, match="it cannot be set up: ModuleNotFoundError"):
        TheirRuntime(tmp_path, Shape(), 1)
