"""The documentation as a browser shows it: no error, no sideways scrolling, and nothing asked of another host."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from integration.pages.chromium import Chromium

SITE = Path(__file__).resolve().parents[2] / "build" / "docs"
PAGES = (
    "index",
    "symptoms",
    "troubleshooting",
    "hazards/h1-block-offsets-v1",
    "block-manager-guide",
    "reference/settings",
)
WIDE_TABLES = ("offload", "native-manager", "support", "benchmarks", "block-manager-figures")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are no news."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (SITE / "index.html").is_file():
        pytest.skip("needs the site: make docs")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_is_whole(page: str, width: int, address: str, chromium: Chromium) -> None:
    tab = chromium.open(f"{address}/{page}.html", width)
    assert tab.run("document.querySelector('h1') !== null")
    assert tab.run("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.run("[...document.images].filter((each) => each.naturalWidth === 0).map((each) => each.src)") == []
    asked = tab.run("performance.getEntriesByType('resource').map((each) => each.name)")
    assert asked
    assert [name for name in asked if not name.startswith(address)] == []
    assert tab.complaints() == []
    tab.close()


PARTLY = """[...document.querySelectorAll('.md-typeset__scrollwrap')]
  .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent.trim().slice(0, 60))"""


@pytest.mark.parametrize("page", WIDE_TABLES)
def test_a_wide_table_shows_itself_whole(page: str, address: str, chromium: Chromium) -> None:
    tab = chromium.open(f"{address}/{page}.html", 1280)
    assert tab.run("document.querySelector('.md-typeset__scrollwrap') !== null")
    assert tab.run(PARTLY) == []
    tab.close()
