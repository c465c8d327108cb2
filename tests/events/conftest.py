"""ZMQ's context, which the tests share with the publisher."""

from typing import Any

import pytest


@pytest.fixture
def context() -> Any:
    return pytest.importorskip("zmq").Context.instance()
