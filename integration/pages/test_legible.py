"""The pages as a browser shows them, narrow and wide, light and dark: no error, nothing cut off, small, faint or out of
reach of the keyboard. Each check is shown to notice what it is for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.pages.chromium import Chromium, Tab
from integration.pages.making import NAMES, written

LOOKS = Path(__file__).with_name("looks.js").read_text()
WIDTHS = (400, 1280)
TABS_MAX = 300


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Path]:
    return {name: written(name, folder) for name in NAMES}


@pytest.fixture(params=[(width, is_dark) for width in WIDTHS for is_dark in (False, True)], ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, bool]:
    found: tuple[int, bool] = request.param
    return found


@pytest.fixture(params=NAMES)
def tab(
    request: pytest.FixtureRequest, pages: dict[str, Path], chromium: Chromium, shape: tuple[int, bool]
) -> Iterator[Tab]:
    width, is_dark = shape
    opened = chromium.open(pages[request.param].as_uri(), width, is_dark=is_dark)
    opened.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    yield opened
    opened.close()


def looks(tab: Tab) -> dict[str, Any]:
    found: dict[str, Any] = tab.run(LOOKS)
    return found


def test_a_page_is_legible_and_says_no_error(tab: Tab) -> None:
    found = looks(tab)
    assert found["texts"] > 20
    assert found["tooWide"] <= 0, "the page scrolls sideways"
    assert found["cut"] == []
    assert found["small"] == []
    assert found["faint"] == []
    assert tab.complaints() == []


@pytest.mark.parametrize(("name", "width"), [(name, width) for name in ("verify", "demo") for width in WIDTHS])
def test_a_table_fits(name: str, width: int, pages: dict[str, Path], chromium: Chromium) -> None:
    tab = chromium.open(pages[name].as_uri(), width)
    assert looks(tab)["partly"] == []
    tab.close()


# Names of lanes that reach into what is drawn beside them.
COVERED = """[...document.querySelectorAll('.timeline')].flatMap((drawing) => {
  const left = Math.min(...[...drawing.querySelectorAll('.bar')].map((each) => each.getBoundingClientRect().left));
  return [...drawing.querySelectorAll('.lane')].filter((each) => each.getBoundingClientRect().right > left)
    .map((each) => each.textContent); })"""


@pytest.mark.parametrize("name", ["verify", "watch"])
def test_names_of_lanes_stand_beside_their_bars(name: str, pages: dict[str, Path], chromium: Chromium) -> None:
    tab = chromium.open(pages[name].as_uri(), 1280)
    assert tab.run("document.querySelectorAll('.timeline .lane').length") > 1
    assert tab.run(COVERED) == []
    tab.close()


def test_each_sentence_of_watch_begins_with_a_capital(pages: dict[str, Path], chromium: Chromium) -> None:
    tab = chromium.open(pages["watch"].as_uri(), 1280)
    sentences = tab.run("[...document.querySelectorAll('section > p')].flatMap((each) => each.textContent.split('. '))")
    assert [each for each in sentences if each[0].islower()] == []
    tab.close()


FOCUSED = """(() => { const at = document.activeElement; if (at === document.body) return null;
  at.dataset.reached = 'yes'; return at.tagName; })()"""
UNREACHED = """[...document.querySelectorAll('a[href], button, summary, input, select, .scroll')]
  .filter((each) => each.checkVisibility() && each.dataset.reached !== 'yes')
  .filter((each) => !each.matches('.scroll') || each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))"""


def unreached(tab: Tab) -> Any:
    """Lists what the tabulator key never comes to."""
    tab.run("document.querySelectorAll('[data-reached]').forEach((each) => { delete each.dataset.reached; })")
    for _ in range(TABS_MAX):
        tab.press("Tab", 9)
        if tab.run(FOCUSED) is None:
            break
    return tab.run(UNREACHED)


def test_the_keyboard_reaches_whatever_can_be_used(tab: Tab) -> None:
    assert unreached(tab) == []


def test_return_opens_and_closes_a_part_of_the_page(pages: dict[str, Path], chromium: Chromium) -> None:
    tab = chromium.open(pages["verify"].as_uri(), 1280)
    tab.run("document.querySelector('summary').focus()")
    for expected in (True, False):
        tab.press("Enter", 13, "\r")
        assert tab.run("document.querySelector('details').open") is expected
    tab.close()


BROKEN = {
    "tooWide": "document.body.style.width = '2000px'",
    "small": "document.querySelector('h1').style.fontSize = '8px'",
    "faint": "document.querySelector('h1').style.color = '#9a9a9a'; document.body.style.background = '#888'",
    "cut": "document.querySelector('h1').style.marginLeft = '1270px'; document.body.style.overflowX = 'hidden'",
}


@pytest.mark.parametrize("check", BROKEN)
def test_a_page_that_is_broken_is_noticed(check: str, pages: dict[str, Path], chromium: Chromium) -> None:
    tab = chromium.open(pages["watch"].as_uri(), 1280)
    assert looks(tab)[check] in ([], 0)
    tab.run(BROKEN[check])
    assert looks(tab)[check] not in ([], 0)
    tab.close()


def test_errors_and_what_is_out_of_reach_are_noticed(pages: dict[str, Path], chromium: Chromium) -> None:
    tab = chromium.open(pages["verify"].as_uri(), 1280)
    tab.run("document.querySelector('summary').tabIndex = -1; console.error('broken')")
    tab.run("setTimeout(() => { throw new Error('thrown'); }); new Promise((done) => setTimeout(done, 50))")
    assert len(unreached(tab)) == 1
    assert len(tab.complaints()) == 2
    tab.close()
