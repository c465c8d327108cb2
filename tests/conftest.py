"""Hypothesis profiles, a quick one for the desk and a longer one where CI is set. No test leaves settings behind, or
writes where processes of the user write.

CI runs the same examples each time, so that what fails there is the change; new ones are for the desk. No deadlines:
machines differ.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("desk", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=100, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_collection_finish() -> None:
    """Many tests collect garbage, which walks everything that is alive. What was imported by now stays alive."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def left_alone() -> Iterator[None]:
    """The same for what the tests of a module leave alive: of a few thousand tests, that is more than all imports."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests start servers that write into the user's runtime folder, which is below the temporary one by default;
    `trtllm-kvfix status` would show them beside the user's own."""
    folder = tmp_path_factory.mktemp("tmp")  # asked for first: pytest's own folders stay where they are
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)  # so that the variable is read again
        yield folder


@pytest.fixture(autouse=True)
def no_settings_left() -> Iterator[None]:
    """Settings left in the environment would reach later tests, and the processes that they start."""
    before = _settings()
    yield
    assert _settings() == before


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TRTLLM_KVFIX_")}
