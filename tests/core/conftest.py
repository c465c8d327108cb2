"""The long profile of the proof: `HYPOTHESIS_PROFILE=fuzz`. Without it the state machine keeps to bounds of its own."""

import os

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
