"""Each test that asks for `era` runs once for every era."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bound import ERAS, load


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module of one era. After the test, the switch of the repair is off again."""
    kvfix_bound = load()
    yield getattr(kvfix_bound, request.param)
    kvfix_bound.set_computed_only(False)
