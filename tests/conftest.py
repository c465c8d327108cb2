"""Hypothesis profiles: a quick one for the desk, a longer one where CI is set. No deadlines: machines differ."""

import os

from hypothesis import settings

settings.register_profile("desk", deadline=None, max_examples=50)
settings.register_profile("ci", deadline=None, max_examples=300, print_blob=True, derandomize=False)
settings.load_profile("ci" if os.environ.get("CI") else "desk")
