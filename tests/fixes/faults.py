"""Faults planted in our own code, one place at a time: functions of a fix, and its calls into native code.

Each fix lists its places; tests/fixes/test_faults.py has them all and asks of each that the server goes on, that what
attention saw is right, and that the fault is counted and shown.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any
from unittest import mock

from tests.standin.serving import Server
from trtllm_kvfix.metrics.counters import Counter

OURS = "trtllm_kvfix"
REQUESTS = 16


class Injected(Exception):
    """A planted fault raises this."""


@dataclass
class Planted:
    raised: int = 0


@dataclass(frozen=True)
class Fault:
    """`name` is dotted and begins below the package; where it is something that upstream's stand-in uses as well, such
    as a native device, the fault is in our calls alone."""

    name: str
    variant: str
    traffic: "Callable[[Fault], object]"
    llm_args: dict[str, Any] = field(default_factory=dict, compare=False)
    draft: bool = False  # stall the draft model's copies; upstream's own fence covers the target's
    stands_down: bool = True  # where the place is come by often enough
    at_once: bool = False  # at the first fault
    nixl: bool = False
    attributes: tuple[tuple[str, Any], ...] = field(default=(), compare=False)  # set for the time of the test

    def __str__(self) -> str:
        return f"{self.variant}-{self.name}"


@contextmanager
def failing(name: str, *, always: bool) -> Iterator[Planted]:
    """The function of that name raises, the first time or every time, when our code calls it."""
    owner, attribute = _resolved(name)
    original = getattr(owner, attribute)
    planted = Planted()

    def raise_or_call(*args: Any, **kwargs: Any) -> Any:
        if (always or planted.raised == 0) and _is_ours(sys._getframe(1)):
            planted.raised += 1
            raise Injected(name)
        return original(*args, **kwargs)

    if isinstance(original, Counter):  # its objects take no attributes, and the others must still count
        counter, add = original, Counter.add
        original = partial(add, counter)

        def add_or_raise(self: Counter, amount: float = 1) -> None:
            raise_or_call(amount) if self is counter else add(self, amount)

        owner, attribute = Counter, "add"
        replaced: Any = add_or_raise
    else:
        replaced = raise_or_call
    with mock.patch.object(owner, attribute, replaced):
        yield planted


def serve(place: Fault) -> None:
    """Traffic under a stall; every block offset that attention saw is that of its request."""
    for corruption in corruptions(place):
        assert corruption.what != "block offsets", corruption


def serve_with_every_buffer_right(place: Fault) -> None:
    assert corruptions(place) == []


def corruptions(place: Fault) -> list[Any]:
    server = Server(place.llm_args)
    with server.stall(draft=place.draft) as stall:
        responses = server.serve(server.workload(REQUESTS))
    assert len(responses) == REQUESTS and stall.held > 0
    witness = server.draft_witness if place.draft else server.witness
    assert witness is not None and witness.steps > 0
    return list(witness.corruptions)


@contextmanager
def attributes_of(place: Fault) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in place.attributes:
            stack.enter_context(mock.patch(f"{OURS}.{name}", value))
        yield


def _resolved(name: str) -> tuple[Any, str]:
    """The owner of the last part. Modules come first, then what hangs on them."""
    *parts, attribute = f"{OURS}.{name}".split(".")
    owner: Any = import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        owner = getattr(owner, part) if hasattr(owner, part) else import_module(".".join(parts[:index]))
    return owner, attribute


def _is_ours(frame: FrameType | None) -> bool:
    """Whether our package calls; tests that stand in between, such as a stall, do not count."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("tests.", "unittest.")):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == OURS
