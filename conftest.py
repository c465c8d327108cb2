"""For tests/ and integration/ alike."""

pytest_plugins = ["tests.skips"]
