"""Settings go to child processes, and do not come back as if the user had said them."""

import os
from collections.abc import Iterator

import pytest

from trtllm_kvfix.overlay import launch
from trtllm_kvfix.overlay.child_environment import ChildEnvironment, carried, job_here
from trtllm_kvfix.overlay.hook_loss import BOOTSTRAP
from trtllm_kvfix.settings import export, load, unset

BUDGET = "TRTLLM_KVFIX_FIXES_TOKEN_BUDGET"
PORT = "TRTLLM_KVFIX_METRICS_PORT"


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildEnvironment]:
    """Those of a process in which the user has chosen a port."""
    for name in carried():
        monkeypatch.delenv(name)
    monkeypatch.setenv(PORT, "9400")
    made = ChildEnvironment()
    yield made
    made.stop()
    unset(carried())  # not by monkeypatch, which would put back afterwards what `stop` has set


def sent(children: ChildEnvironment, said: dict[str, str] | None = None, **section: object) -> dict[str, str]:
    children.carry(load(environ=children.given(said), section=section), "a-job", said)
    found = carried()
    assert found.pop("TRTLLM_KVFIX_JOB") == "a-job"
    assert found.pop("TRTLLM_KVFIX_ENABLED") == "true"
    return found


def test_settings_of_a_file_go_to_children_and_do_not_stick(children: ChildEnvironment) -> None:
    assert sent(children, fixes={"token-budget": "off"}) == {PORT: "9400", BUDGET: "off"}
    assert children.given()[PORT] == "9400"
    assert BUDGET not in children.given()
    assert sent(children, fixes={"token-budget": "on"}) == {PORT: "9400", BUDGET: "on"}
    assert sent(children) == {PORT: "9400"}


def test_what_the_program_says_comes_before_files_and_the_users_variable_comes_back(
    children: ChildEnvironment,
) -> None:
    """However often settings are carried meanwhile."""
    assert sent(children, {PORT: "1", BUDGET: "off"}, fixes={"token-budget": "on"}) == {PORT: "1", BUDGET: "off"}
    assert sent(children, fixes={"token-budget": "on"}) == {PORT: "1", BUDGET: "off"}
    assert children.given()[PORT] == "1"
    assert children.given(said={})[PORT] == "9400"
    assert sent(children, {}) == {PORT: "9400"}


def test_what_a_call_says_is_forgotten_when_the_call_fails(children: ChildEnvironment) -> None:
    """It never comes to `carry`."""
    assert children.given({PORT: "1"})[PORT] == "1"
    assert children.given()[PORT] == "9400"


@pytest.mark.parametrize("theirs", [None, "", "/plugins"])
def test_the_path_of_children_is_as_it_was_behind_the_end(
    children: ChildEnvironment, theirs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if theirs is not None:
        monkeypatch.setenv("PYTHONPATH", theirs)
    for _ in range(2):  # a program may call `enable` twice
        children.lead(launch.path_with_hook(os.environ))
        assert os.environ["PYTHONPATH"].split(":")[0] == str(BOOTSTRAP)
    children.stop()
    assert os.environ.get("PYTHONPATH") == theirs


def test_a_path_that_was_ours_before_or_is_anothers_since_stays(
    children: ChildEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{BOOTSTRAP}:/plugins")  # below `run`
    children.lead(launch.path_with_hook(os.environ))
    children.stop()
    assert os.environ["PYTHONPATH"] == f"{BOOTSTRAP}:/plugins"
    monkeypatch.setenv("PYTHONPATH", "/plugins")
    children.lead(launch.path_with_hook(os.environ))
    monkeypatch.setenv("PYTHONPATH", f"/more:{BOOTSTRAP}:/plugins")
    children.stop()
    assert os.environ["PYTHONPATH"] == f"/more:{BOOTSTRAP}:/plugins"


def test_the_job_stays_the_same(children: ChildEnvironment) -> None:
    job = job_here()
    children.carry(load(environ=children.given()), job)
    assert job_here() == job


def test_a_variable_that_is_set_since_counts(children: ChildEnvironment) -> None:
    sent(children, fixes={"token-budget": "off"})
    export({BUDGET: "on"})
    assert children.given()[BUDGET] == "on"
    assert sent(children) == {PORT: "9400", BUDGET: "on"}


def test_after_the_end_children_run_without_and_the_users_variables_are_as_they_were(
    children: ChildEnvironment,
) -> None:
    sent(children, {PORT: "1"}, fixes={"token-budget": "off"})
    children.stop()
    assert carried() == {PORT: "9400", "TRTLLM_KVFIX_ENABLED": "false"}
