"""Bound classes as the nanobind sources of a tree declare them: names of classes and methods, and of their arguments.

It reads text, not C++: a `.def("name", ...)` belongs to the class of the last `nb::class_<...>(m, "Name")` before it. A
method without `nb::arg` is positional only, as nanobind makes it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, text_of
from trtllm_kvfix.overlay.upstream import BINDINGS, V2_UTILS

FOLDERS = ("cpp/tensorrt_llm/nanobind", "cpp/tensorrt_llm/pybind")
FILES = {
    BINDINGS: ("batch_manager/kvCacheManager.cpp", "batch_manager/bindings.cpp", "batch_manager/kvCacheConnector.cpp"),
    V2_UTILS: ("batch_manager/kvCacheManagerV2Utils.cpp",),
}
_CLASS = re.compile(r"(?:nb|py)::class_<[^;(]*?>\s*\(\s*\w+\s*,\s*\"(\w+)\"")
_MEMBER = re.compile(r"\.def(?P<kind>_static|_prop_ro|_prop_rw|_readonly|_readwrite|_ro|_rw)?\(\s*\"(?P<name>\w+)\"")
_FUNCTION = re.compile(r"\bm\w*\.def\(\s*\"(?P<name>\w+)\"")
_ARGUMENT = re.compile(r"(?:nb|py)::arg\(\s*\"(\w+)\"\s*\)(\s*=)?")


class BoundSources:
    """`folder` is the root of a checkout; an unpacked wheel has no such sources."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def module(self, name: str) -> ModuleType | None:
        texts = list(self._texts(name))
        if not texts:
            return None
        module = ModuleType(name)
        for text in texts:
            _declare(module, text)
        return module

    def _texts(self, name: str) -> Iterator[str]:
        for folder in FOLDERS:
            for file in FILES[name]:
                path = self._folder / folder / file
                if path.is_file():
                    yield text_of(path, SOURCE_BYTES_MAX, errors="replace")


def _declare(module: ModuleType, text: str) -> None:
    classes = [(found.start(), found[1]) for found in _CLASS.finditer(text)]
    for begin, name in classes:
        if not hasattr(module, name):
            setattr(module, name, type(name, (), {"__module__": module.__name__}))
        end = next((start for start, _ in classes if start > begin), len(text))
        for found in _MEMBER.finditer(text, begin, end):
            made = _function(module, found["name"], _statement(text, found.start()))
            is_property = found["kind"] not in (None, "_static")
            setattr(getattr(module, name), found["name"], property(made) if is_property else made)
    for found in _FUNCTION.finditer(text):
        setattr(module, found["name"], _function(module, found["name"], _statement(text, found.start())))


def _statement(text: str, begin: int) -> str:
    """The call that begins there, to its closing parenthesis."""
    depth = 0
    for at in range(text.index("(", begin), len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin : at + 1]
    return text[begin:]


def _function(module: ModuleType, name: str, statement: str) -> "Unread":
    arguments = [f"{found[1]}{' = ...' if found[2] else ''}" for found in _ARGUMENT.finditer(statement)]
    return Unread(name, module.__name__, f"{name}({', '.join(arguments) or '*args'})")


class Unread:
    """Something of an extension module: it has no signature to inspect, and a docstring at best, as bound functions."""

    def __init__(self, name: str, module: str, doc: str | None = None) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = module
        self.__doc__ = doc

    @property
    def __signature__(self) -> Any:
        raise ValueError(f"no signature found for {self.__name__}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(f"{self.__name__} was read from a source and cannot be called")
