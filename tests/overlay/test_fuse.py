"""A fix whose own code fails: counted, logged once, and after three faults in a row it stands down."""

import logging
from collections.abc import Iterator

import pytest

from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay import fuse

ID = "test-fix"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fuse.reset(ID)
    yield
    fuse.reset(ID)


def test_three_faults_in_a_row_blow_it_and_one_that_works_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    tried = fuse.of(ID)
    before = counters.fix_faults.by_fix().get(ID, 0.0)
    with caplog.at_level(logging.ERROR, logger="trtllm_kvfix"):
        for _ in range(2):
            tried.fault(ValueError("odd"))
        tried.in_a_row = 0
        for _ in range(2):
            tried.fault(ValueError("odd"))
        before_the_third = tried.blown
        tried.fault(ValueError("odd"))
    assert (before_the_third, tried.blown) == (False, True)
    assert tried.faults == 5
    assert tried.first_error == "ValueError: odd"
    assert counters.fix_faults.by_fix()[ID] - before == 5
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "logged once" in said[0] and "stands down" in said[1]
    assert caplog.records[0].exc_info is not None


def test_one_that_may_not_blow_leaves_that_to_its_owner() -> None:
    tried = fuse.Fuse(ID, may_blow=False)
    for _ in range(10):
        tried.fault(ValueError("odd"))
    by_itself = tried.blown
    tried.blow("all ranks agreed")
    assert (by_itself, tried.blown) == (False, True)


def test_watchers_hear_of_the_first_fault_and_of_standing_down_and_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def failing() -> None:
        raise OSError("full")

    monkeypatch.setattr(fuse, "_watchers", [failing, lambda: heard.append(1)])
    tried = fuse.of(ID)
    for _ in range(4):
        tried.fault(RuntimeError())
    assert len(heard) == 2
