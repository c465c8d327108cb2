"""For tests/ and integration/ alike."""

import os

pytest_plugins = ["tests.skips"]

# The interpreters that tests start multiply nothing large. numpy's threads cost each of them a third of its import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
