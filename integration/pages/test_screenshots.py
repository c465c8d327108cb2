"""Pages look as they did: screenshots beside those in references/, part by part.

    KVFIX_WRITE_REFERENCES=1 make test-pages     # after a change of looks; then look at the pictures

A page in another family of fonts has to pass, and one that has lost its style, its scheme or a part of it has to fail.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.pages import screenshots
from integration.pages.chromium import Chromium, Tab
from integration.pages.making import NAMES, recorded
from integration.pages.screenshots import Shot, complaints, keep, reference, taken

SHAPES = [(width, is_dark) for width in (400, 1280) for is_dark in (False, True)]
FAMILIES = ("serif", "Liberation Sans, DejaVu Sans Condensed, sans-serif")


@pytest.fixture(scope="module")
def bench(chromium: Chromium) -> Iterator[Tab]:
    tab = screenshots.workbench(chromium)
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Path]:
    return {name: recorded(name, folder) for name in NAMES}


class Camera:
    def __init__(self, chromium: Chromium, bench: Tab, pages: dict[str, Path]) -> None:
        self._chromium = chromium
        self._bench = bench
        self._pages = pages

    def shot(self, name: str, shape: tuple[int, bool], change: str = "0") -> Shot:
        return taken(self._chromium, self._bench, self._pages[name], shape[0], is_dark=shape[1], change=change)

    def complaints(self, name: str, shape: tuple[int, bool], found: Shot) -> list[str]:
        return complaints(self._bench, reference(called(name, shape)), found)


@pytest.fixture
def camera(chromium: Chromium, bench: Tab, pages: dict[str, Path]) -> Camera:
    return Camera(chromium, bench, pages)


def called(name: str, shape: tuple[int, bool]) -> str:
    return f"{name}-{shape[0]}-{'dark' if shape[1] else 'light'}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_looks_as_it_did(name: str, shape: tuple[int, bool], camera: Camera) -> None:
    found = camera.shot(name, shape)
    if os.environ.get("KVFIX_WRITE_REFERENCES"):
        keep(called(name, shape), found)
    assert camera.complaints(name, shape, found) == []


@pytest.mark.parametrize("shape", [(400, False), (1280, True)], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_another_font_passes(family: str, name: str, shape: tuple[int, bool], camera: Camera) -> None:
    found = camera.shot(name, shape, f"document.body.style.fontFamily = {json.dumps(family)}")
    assert camera.complaints(name, shape, found) == []


HIDDEN = "each.style.visibility = 'hidden'"
BROKEN = {
    "without its style": "document.querySelector('style').remove()",
    "without its last section": "[...document.querySelectorAll('section')].at(-1).remove()",
    "without its bars": f"document.querySelectorAll('.bar, td').forEach((each) => {{ {HIDDEN}; }})",
    "in half of the width": "document.querySelector('main').style.maxWidth = '50%'",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", BROKEN)
def test_a_page_that_looks_different_fails(change: str, name: str, camera: Camera) -> None:
    found = camera.shot(name, (1280, False), BROKEN[change])
    assert camera.complaints(name, (1280, False), found) != []


@pytest.mark.parametrize("name", NAMES)
def test_the_other_scheme_fails(name: str, camera: Camera) -> None:
    assert camera.complaints(name, (1280, False), camera.shot(name, (1280, True))) != []
