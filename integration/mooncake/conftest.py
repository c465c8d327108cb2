"""Needs Mooncake Store, without CUDA: `make test-mooncake` fetches it."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from integration.mooncake.engines import Engine, MakeEngine
from integration.mooncake.nodes import MOONCAKE, Master, Node

sys.path.append(str(MOONCAKE))


@pytest.fixture(autouse=True)
def needs_mooncake() -> None:
    if not MOONCAKE.is_dir():
        pytest.skip("needs Mooncake Store: make test-mooncake")


@pytest.fixture
def master() -> Iterator[Master]:
    made = Master()
    yield made
    made.kill()


@pytest.fixture
def node(master: Master) -> Iterator[Node]:
    """Memory of somebody else's, which stays when engines go."""
    with closing(Node(master.address)) as made:
        yield made


@pytest.fixture
def make_engine(master: Master) -> Iterator[MakeEngine]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Engine:
            engine = Engine(master.address, **settings)
            stack.callback(engine.kill)
            engine.ask("up")
            return engine

        yield make
