"""Each fix's own test module, test_<id>.py, holds things for the tests that go through all fixes.

BROKEN is a part of its mechanism without which its self-test must fail. PLACES are where its code is made to fail.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from tests.fixes.faults import Fault
from trtllm_kvfix.fix_ids import room_of


class Broken(NamedTuple):
    name: str  # dotted, below the package
    instead: Callable[..., Any]


def broken_of(fix_id: str) -> Broken:
    broken: Broken = _tests_of(fix_id).BROKEN
    return broken


def places_of(fix_id: str) -> tuple[Fault, ...]:
    places: tuple[Fault, ...] = _tests_of(fix_id).PLACES
    return places


def as_it_was(*arguments: Any) -> Any:
    """A replacement that had done nothing would make this: the original, its first or second argument."""
    return next(each for each in arguments if callable(each) and not isinstance(each, type))


def _tests_of(fix_id: str) -> Any:
    return import_module(f"tests.fixes.test_{room_of(fix_id)}")
