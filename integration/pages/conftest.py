"""One browser for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.pages.chromium import Chromium, executable

WHERE = "Debian and Ubuntu: apt install chromium fonts-dejavu-core"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if executable() is None:
        pytest.skip(f"needs Chromium; {WHERE}")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")
