"""Dropping a native object does not stop Python's other threads, even if it waits for the device."""

import pytest

from .dropped import EVERYWHERE, check_apart


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_an_object_that_is_dropped_waits_without_the_gil(kind: str) -> None:
    check_apart("cpu", kind)
