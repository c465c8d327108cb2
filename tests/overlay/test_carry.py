"""Settings go to child processes, and do not come back as if the user had said them."""

from collections.abc import Iterator

import pytest

from trtllm_kvfix.overlay import carry
from trtllm_kvfix.settings import export, load, unset

BUDGET = "TRTLLM_KVFIX_FIXES_TOKEN_BUDGET"
PORT = "TRTLLM_KVFIX_METRICS_PORT"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a process in which the user has chosen a port."""
    for name in carry.carried():
        monkeypatch.delenv(name)
    monkeypatch.setenv(PORT, "9400")
    yield
    carry.stop()
    unset(carry.carried())  # not by monkeypatch, which would put back afterwards what `stop` has set


def carried(**section: object) -> dict[str, str]:
    job = carry.carry(load(environ=carry.given(), section=section))
    found = carry.carried()
    assert found.pop("TRTLLM_KVFIX_JOB") == job
    assert found.pop("TRTLLM_KVFIX_ENABLED") == "true"
    return found


def test_settings_of_a_file_go_to_children_and_do_not_stick() -> None:
    assert carried(fixes={"token-budget": "off"}) == {PORT: "9400", BUDGET: "off"}
    assert carry.given()[PORT] == "9400"
    assert BUDGET not in carry.given()
    assert carried(fixes={"token-budget": "on"}) == {PORT: "9400", BUDGET: "on"}
    assert carried() == {PORT: "9400"}


def test_what_the_program_says_comes_before_files_and_the_users_variable_comes_back() -> None:
    carry.say({PORT: "1", BUDGET: "off"})
    assert carried(fixes={"token-budget": "on"}) == {PORT: "1", BUDGET: "off"}
    assert carry.given()[PORT] == "1"
    carry.say({})
    assert carried() == {PORT: "9400"}


def test_the_job_stays_the_same() -> None:
    assert carry.carry(load(environ=carry.given())) == carry.carry(load(environ=carry.given()))


def test_a_variable_that_is_set_since_counts() -> None:
    carried(fixes={"token-budget": "off"})
    export({BUDGET: "on"})
    assert carry.given()[BUDGET] == "on"
    assert carried() == {PORT: "9400", BUDGET: "on"}


def test_after_the_end_children_run_without_and_the_users_variables_are_as_they_were() -> None:
    carry.say({PORT: "1"})
    carried(fixes={"token-budget": "off"})
    carry.stop()
    assert carry.carried() == {PORT: "9400", "TRTLLM_KVFIX_ENABLED": "false"}
