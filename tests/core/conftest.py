"""The long profile of the proof, `HYPOTHESIS_PROFILE=fuzz`, without which the state machine keeps to bounds of its own,
and threads that leave the GIL to others."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    max_examples=20_000,
    stateful_step_count=120,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

if os.environ.get("HYPOTHESIS_PROFILE"):
    settings.load_profile(os.environ["HYPOTHESIS_PROFILE"])


@pytest.fixture
def stubborn_threads() -> Iterator[None]:
    """A thread that waits for the GIL gets it only in a call that releases it."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(usual_s)
