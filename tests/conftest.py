"""Hypothesis profiles, a quick one for the desk and a longer one where CI is set; and no test leaves settings behind.

No deadlines: machines differ.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("desk", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=300, print_blob=True, derandomize=False)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def no_settings_left() -> Iterator[None]:
    """In the environment: later tests would run with them, and the processes that they start."""
    before = _settings()
    yield
    assert _settings() == before


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TRTLLM_KVFIX_")}
