"""On the tree of the newest executor (era O), its own steps with a connector run, and none of ours is put over them."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="the rig needs torch, on the CPU")

from integration.upstream.newest_executor import Fetch  # noqa: E402
from integration.upstream.running import Result, apart  # noqa: E402
from integration.upstream.scenarios import SCENARIOS  # noqa: E402
from integration.upstream.test_upstream import PLACES  # noqa: E402
from integration.upstream.v2_methods import Steps  # noqa: E402

ROOTS = {era: root for era, root in PLACES if era in ("N", "O")}
OURS = "PyExecutor, as the newest does it"
pytestmark = pytest.mark.skipif("O" not in ROOTS, reason="KVFIX_UPSTREAM names no tree of the newest executor")


def alone(era: str, name: str, **changed: Any) -> Result:
    """Upstream without us."""
    scenario = next(each for each in SCENARIOS if each.name == name)
    return apart(ROOTS[era], era, replace(scenario, **changed), "off")


def test_its_steps_are_upstreams_own() -> None:
    found = alone("O", "v2-reserve-async")
    assert found.result == "right", found.remark
    assert found.tree["methods_of_ours"][OURS] == ["_fetch_and_activate_new_requests"]
    assert not vars(Steps).keys() & set(found.tree["methods_of_ours"]["PyExecutor"])


@pytest.mark.skipif("N" not in ROOTS, reason="KVFIX_UPSTREAM names no tree of the summer's executor")
def test_the_summers_executor_has_them_from_us() -> None:
    found = alone("N", "v2-reserve-async")
    assert found.result == "right", found.remark
    assert {name for name in vars(Steps) if not name.startswith("__")} < set(found.tree["methods_of_ours"][OURS])


def test_a_load_whose_end_nobody_fetches_is_waited_for() -> None:
    """The control of the one step that is ours."""
    with mock.patch.object(Fetch, "_fetch_and_activate_new_requests", _plain):
        found = alone("O", "v2-reserve-async")
    assert found.result == "wrong" and "Starved" in found.remark


def _plain(executor: Any) -> Any:
    return type(executor)._fetch_and_activate_new_requests(executor)


def test_a_tier_below_the_device_is_refused_where_there_is_a_connector() -> None:
    """By upstream's own registration, which sees the tiers that the scenario has."""
    scenario = next(each for each in SCENARIOS if each.name == "v2-loop-recorder")
    found = alone("O", scenario.name, shape=replace(scenario.shape, host_blocks=4))
    assert found.result == "not-run" and "cache tiers below GPU" in found.remark


def test_who_is_cancelled_while_it_loads_is_ended_by_its_own_step() -> None:
    """The control of upstream's steps: a double in the place of one shows."""
    name = "v2-reserve-cancelled"
    scenario = next(each for each in SCENARIOS if each.name == name)

    def prepare(server: Any) -> None:
        scenario.prepare(server)
        server.executor._finish_connector_load_termination = lambda _: None

    assert alone("O", name).result == "right"
    found = alone("O", name, prepare=prepare)
    assert found.result == "wrong" and "Starved" in found.remark
