"""One browser for all tests. Without one they are skipped, and with CI set that is an error."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.pages.chromium import Chromium, executable

WHERE = "Debian and Ubuntu: apt install chromium fonts-dejavu-core"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if executable() is None:
        if os.environ.get("CI"):
            pytest.fail(f"there is no Chromium; {WHERE}")
        pytest.skip(f"needs Chromium; {WHERE}")
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")
