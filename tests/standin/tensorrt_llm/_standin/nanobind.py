"""Bound names look so from Python, where a bound class of the stand-in is written in Python."""

from collections.abc import Callable
from copy import copy
from types import MethodType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


def flat(cls: Class) -> Class:
    """Every public method is an attribute of the class itself, and of no other, as nanobind defines them."""
    for base in cls.__mro__[1:-1]:  # a derived class before those it overrides
        for name, attribute in vars(base).items():
            if not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, copy(attribute))
    return cls


class NbFunction:
    """`inspect` sees no signature of a bound function, but a docstring that begins with one.

    nanobind refuses None before any caster sees it. (Where a binding says that None will do, nobody here passes it.)
    """

    def __init__(self, function: Callable[..., Any], signature: str, *, name: str = "") -> None:
        self._function = function
        self.__name__ = self.__qualname__ = name or function.__name__.lstrip("_")
        self.__module__ = function.__module__
        self.__doc__ = f"{self.__name__}{signature}"

    @property
    def __signature__(self) -> Any:
        raise ValueError(f"no signature found for builtin {self.__name__}")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if any(each is None for each in (*args, *keywords.values())):
            raise TypeError(f"{self.__name__}(): incompatible function arguments: None is not accepted")
        return self._function(*args, **keywords)


def bound(function: Callable[..., Any]) -> Any:
    """Declares a method; that its arguments have names, or none, its parameters say."""
    return NbFunction(function, f"(self, ...) -> {function.__annotations__.get('return', 'object')}")
