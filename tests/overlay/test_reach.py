# ruff: noqa: PLW0108  lambdas are what is tested
"""Wrappers that call through are told from functions that stand in the place of what they were made of."""

import functools
import inspect
from collections.abc import Callable
from itertools import pairwise
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from trtllm_kvfix.overlay import reach


def ours(*_: Any) -> str:
    return "ours"


def upstreams(*_: Any) -> str:
    return "upstream"


kept: dict[str, Any] = {}
saved: list[Any] = []


def by_closure(found: Any) -> Any:
    return lambda *args: found(*args)


def by_wraps(found: Any) -> Any:
    @functools.wraps(found)
    def timed(*args: Any) -> Any:
        return found(*args)

    return timed


def by_wrapped_attribute(found: Any) -> Any:
    @functools.wraps(found)
    def timed(*args: Any) -> Any:
        return timed.__wrapped__(*args)

    return timed


def by_default_argument(found: Any) -> Any:
    def timed(*args: Any, _found: Any = found) -> Any:
        return _found(*args)

    return timed


def by_a_global_dictionary(found: Any) -> Any:
    kept["copy"] = found
    return lambda *args: kept["copy"](*args)


def by_a_global_list(found: Any) -> Any:
    saved[:] = [found]
    return lambda *args: saved[0](*args)


def by_an_object(found: Any) -> Any:
    class Timed:
        def __init__(self) -> None:
            self.inner = found

        def __call__(self, *args: Any) -> Any:
            return self._run(*args)

        def _run(self, *args: Any) -> Any:
            return self.inner(*args)

    return Timed()


def by_a_patcher(found: Any) -> Any:
    patcher = SimpleNamespace(original=found)
    return lambda *args: patcher.original(*args)


def by_a_bound_method(found: Any) -> Any:
    class Patcher:
        original = staticmethod(found)

        def run(self, *args: Any) -> Any:
            return self.original(*args)

    patcher = Patcher()
    patcher.__dict__["original"] = found
    return patcher.run


def by_partial(found: Any) -> Any:
    return functools.partial(lambda inner, *args: inner(*args), found)


def by_a_cache(found: Any) -> Any:
    return functools.lru_cache(found)


def by_a_mock(found: Any) -> Any:
    return mock.Mock(wraps=found)


def by_two_wrappers(found: Any) -> Any:
    return by_wraps(by_an_object(by_closure(found)))


def by_an_inner_function(found: Any) -> Any:
    def outer(*args: Any) -> Any:
        return [found(*each) for each in [args]][0]  # noqa: RUF015

    return outer


def by_super(found: Any) -> Any:
    base = type("Base", (), {"copy": found})

    class Derived(base):  # type: ignore[misc, valid-type]
        def copy(self) -> Any:
            return super().copy()

    return Derived.__dict__["copy"]


def by_naming_the_base(found: Any) -> Any:
    base: Any = type("Base", (), {"copy": found})
    return lambda self: base.copy(self)


def by_a_dictionary_in_another(found: Any) -> Any:
    kept["copies"] = {"copy": found}
    return lambda *args: kept["copies"]["copy"](*args)


def by_a_slot(found: Any) -> Any:
    class Timed:
        __slots__ = ("inner",)

        def __init__(self) -> None:
            self.inner = found

        def __call__(self, *args: Any) -> Any:
            return self.inner(*args)

    return Timed()


def by_a_descriptor(found: Any) -> Any:
    class Timed:
        def __init__(self) -> None:
            self.inner = found

        def __get__(self, one: Any, kind: Any = None) -> Any:
            return functools.partial(self.inner, one)

    return Timed()


def by_a_dispatch(found: Any) -> Any:
    return functools.singledispatchmethod(found)


def by_its_call(found: Any) -> Any:
    return lambda *args: found.__call__(*args)


def by_its_binding(found: Any) -> Any:
    return lambda self, *args: found.__get__(self)(*args)


def by_a_patcher_in_an_argument(found: Any) -> Any:
    patcher = SimpleNamespace(original=found)

    def timed(*args: Any, _patcher: Any = patcher) -> Any:
        return _patcher.original(*args)

    return timed


THROUGH = [value for name, value in list(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("wrap", THROUGH, ids=lambda each: each.__name__)
def test_a_wrapper_reaches_what_it_wraps(wrap: Callable[[Any], Any]) -> None:
    assert reach.reaches(wrap(ours), ours)
    assert not reach.reaches(wrap(upstreams), ours)


def marked_and_not_called(found: Any) -> Any:
    @functools.wraps(found)
    def patched(*args: Any) -> Any:
        return upstreams(*args)

    return patched


def kept_by_a_patcher_and_not_called(found: Any) -> Any:
    patcher = SimpleNamespace(to_restore=found, instead=upstreams)
    return lambda *args: patcher.instead(*args)


def a_method_of_another(found: Any) -> Any:
    class Plugin:
        def __init__(self) -> None:
            self.before = found

        def copy(self, *args: Any) -> Any:
            return upstreams(self, *args)

    return MethodType(Plugin.copy, Plugin())


def what_it_has_wrapped(found: Any) -> Any:
    return lambda *args: found.__wrapped__(*args)


def what_an_object_has_wrapped(found: Any) -> Any:
    class Plugin:
        def __init__(self) -> None:
            self.before = found

        def __call__(self, *args: Any) -> Any:
            return self.before.__wrapped__(*args)

    return Plugin()


def unwrapped(found: Any) -> Any:
    return lambda *args: inspect.unwrap(found)(*args)


def named_in_a_line(found: Any) -> Any:
    def patched(*args: Any) -> Any:
        saved.append(found.__name__)
        return upstreams(*args)

    return patched


def kept_in_an_argument_and_not_called(found: Any) -> Any:
    def patched(*args: Any, _before: Any = found) -> Any:
        return upstreams(*args)

    return patched


PAST = [
    *(marked_and_not_called, kept_by_a_patcher_and_not_called, a_method_of_another, what_it_has_wrapped),
    *(what_an_object_has_wrapped, unwrapped, named_in_a_line, kept_in_an_argument_and_not_called),
]


@pytest.mark.parametrize("instead", PAST)
def test_what_stands_in_its_place_does_not_reach_it(instead: Callable[[Any], Any]) -> None:
    replacement = functools.update_wrapper(lambda *args: ours(*args), upstreams)
    assert not reach.reaches(instead(replacement), replacement)


def test_static_and_class_methods_are_what_they_hold() -> None:
    assert reach.reaches(staticmethod(by_wraps(ours)), staticmethod(ours))
    assert reach.reaches(classmethod(ours), ours)
    assert reach.reaches(property(by_closure(ours)), ours)


def test_nothing_of_somebody_elses_is_run() -> None:
    ran: list[str] = []

    class Hostile:
        def __getattr__(self, name: str) -> Any:
            ran.append(name)
            raise RuntimeError(name)

        def __call__(self) -> Any:
            return self.inner()

        @property
        def inner(self) -> Any:
            ran.append("inner")
            raise RuntimeError("inner")

    class HostileEverywhere:
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            raise RuntimeError(name)

    assert not reach.reaches(Hostile(), ours)
    hostile = HostileEverywhere()
    assert not reach.reaches(lambda: hostile.copy(), ours)
    assert ran == []


def test_a_large_application_is_not_walked() -> None:
    many = [SimpleNamespace(next=None) for _ in range(10_000)]
    for one, other in pairwise(many):
        one.next = other
    first = many[0]
    assert not reach.reaches(lambda: first.next.next, ours)
    assert not reach.reaches(lambda: many, ours)


def test_what_is_shown_names_the_code_and_not_the_name_it_bears() -> None:
    shown = reach.described(marked_and_not_called(ours))
    assert shown.startswith(f"{__name__}.patched (") and "test_reach.py:" in shown
    assert reach.described(by_an_object(ours)).endswith(".Timed")
