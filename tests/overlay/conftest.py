from pathlib import Path

import pytest

from tests.overlay import upstream_double


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The folder of a small `tensorrt_llm`."""
    return upstream_double.write(tmp_path)
