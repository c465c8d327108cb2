"""Settings go to child processes, and do not come back as if the user had said them."""

from collections.abc import Iterator

import pytest

from trtllm_kvfix.overlay import child_environment
from trtllm_kvfix.settings import export, load, unset

BUDGET = "TRTLLM_KVFIX_FIXES_TOKEN_BUDGET"
PORT = "TRTLLM_KVFIX_METRICS_PORT"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a process in which the user has chosen a port."""
    for name in child_environment.carried():
        monkeypatch.delenv(name)
    monkeypatch.setenv(PORT, "9400")
    yield
    child_environment.stop()
    unset(child_environment.carried())  # not by monkeypatch, which would put back afterwards what `stop` has set


def carried(**section: object) -> dict[str, str]:
    job = child_environment.carry(load(environ=child_environment.given(), section=section))
    found = child_environment.carried()
    assert found.pop("TRTLLM_KVFIX_JOB") == job
    assert found.pop("TRTLLM_KVFIX_ENABLED") == "true"
    return found


def test_settings_of_a_file_go_to_children_and_do_not_stick() -> None:
    assert carried(fixes={"token-budget": "off"}) == {PORT: "9400", BUDGET: "off"}
    assert child_environment.given()[PORT] == "9400"
    assert BUDGET not in child_environment.given()
    assert carried(fixes={"token-budget": "on"}) == {PORT: "9400", BUDGET: "on"}
    assert carried() == {PORT: "9400"}


def test_what_the_program_says_comes_before_files_and_the_users_variable_comes_back() -> None:
    child_environment.say({PORT: "1", BUDGET: "off"})
    assert carried(fixes={"token-budget": "on"}) == {PORT: "1", BUDGET: "off"}
    assert child_environment.given()[PORT] == "1"
    child_environment.say({})
    assert carried() == {PORT: "9400"}


def test_the_job_stays_the_same() -> None:
    assert child_environment.carry(load(environ=child_environment.given())) == child_environment.carry(
        load(environ=child_environment.given())
    )


def test_a_variable_that_is_set_since_counts() -> None:
    carried(fixes={"token-budget": "off"})
    export({BUDGET: "on"})
    assert child_environment.given()[BUDGET] == "on"
    assert carried() == {PORT: "9400", BUDGET: "on"}


def test_after_the_end_children_run_without_and_the_users_variables_are_as_they_were() -> None:
    child_environment.say({PORT: "1"})
    carried(fixes={"token-budget": "off"})
    child_environment.stop()
    assert child_environment.carried() == {PORT: "9400", "TRTLLM_KVFIX_ENABLED": "false"}
