from pathlib import Path

import pytest

from tests.overlay import small_upstream


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The folder of a small `tensorrt_llm`."""
    return small_upstream.write(tmp_path)
