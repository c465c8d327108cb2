"""The page of hostrace claims no more than was seen."""

import pytest

from hostrace.page import page
from hostrace.report import summary
from watch.tests.made import made_report


@pytest.mark.parametrize(
    ("guarded", "headline", "verdict"),
    [
        (1200, "No race was seen in 1,200 uses of pinned memory.", "proven"),
        (0, "Nothing was watched: the command made no asynchronous use of pinned memory.", "doubtful"),
    ],
)
def test_no_race_is_worth_what_was_watched(guarded: int, headline: str, verdict: str) -> None:
    text = page(made_report(guarded=guarded))
    assert f"<h1>{headline}</h1>" in text
    assert f'class="verdict {verdict}"' in text
    assert ("says nothing about races" in summary(made_report(guarded=guarded))) == (guarded == 0)


def test_one_is_not_called_many() -> None:
    assert (
        summary(made_report(guarded=1)) == "0 races, 0 unordered, 0 possible, 0 suppressed; 1 use watched in 1 process"
    )
    assert "<h1>No race was seen in 1 use of pinned memory.</h1>" in page(made_report(guarded=1))
