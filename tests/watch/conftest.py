"""The made-up driver, and `watch` on it."""

from watch.tests.conftest import driver, environ, watch

__all__ = ["driver", "environ", "watch"]
