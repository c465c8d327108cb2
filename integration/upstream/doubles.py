"""Names that cannot be had here. A double can be subclassed, called, annotated with and entered, and does nothing.

Every double that something calls while a scenario runs is noted: what a scenario shows must not rest on one.
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

called: set[str] = set()  # doubles that were called since the list was last cleared


def asked_by_overlay() -> bool:
    """The overlay looks at features; it must not take a double for one."""
    asking: str = sys._getframe(2).f_globals.get("__name__", "")
    return asking.split(".", maxsplit=1)[0] == "trtllm_kvfix"


class Meta(type):
    """Makes the class of a double answer for any attribute of itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or asked_by_overlay():
            raise AttributeError(name)
        made = double(f"{cls.__module__}.{cls.__qualname__}.{name}")
        setattr(cls, name, made)
        return made

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    def __ror__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __instancecheck__(cls, instance: Any) -> bool:
        return False if cls.__dict__.get("_is_double") else type.__instancecheck__(cls, instance)


class Double(metaclass=Meta):
    """An instance of a double. As a decorator it returns what it decorates."""

    _is_double = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("_is_double"):
            called.add(f"{cls.__module__}.{cls.__qualname__}")
            if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Double):
                return args[0]
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *args: Any, **_: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not isinstance(args[0], Double):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not type(self).__dict__.get("_is_double"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        called.add(f"{type(self).__module__}.{type(self).__qualname__}.{name}")
        return Double()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


def double(dotted: str) -> Any:
    module, _, name = dotted.rpartition(".")
    return Meta(name, (Double,), {"_is_double": True, "__module__": module, "__qualname__": name})


class DoubledModule(ModuleType):
    """A module that has every name. What is set on it is real, the rest is doubled on the first use."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.doubled: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or asked_by_overlay():
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.doubled.add(name)
        made = double(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


def answer_for(module: ModuleType, noted: list[str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module of which only excerpts are there."""

    def missing(name: str) -> Any:
        if name.startswith("__") or asked_by_overlay():
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        noted.append(name)
        made = double(f"{module.__name__}.{name}")
        setattr(module, name, made)
        return made

    return missing


def does_nothing(*_: Any, **__: Any) -> None:
    """What upstream calls and one rank on a simulated device does not need."""


class Idle:
    """A part of upstream's that is there and has nothing to do."""

    enabled = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return does_nothing
