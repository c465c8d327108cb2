"""State that every engine of a process shares: what the calls of a fix write, among the objects that were there before.

An engine's own objects are made when it first calls; what is there earlier belongs to the fix, the part or the module,
and threads of all engines write it.
"""

import sys
from collections.abc import Iterator, Mapping, Sized
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from trtllm_kvfix.overlay.registry import Registry

OURS = "trtllm_kvfix"
PLAIN = (int, float, str, bytes, bool, type(None))


def snapshot(registry: Registry) -> dict[tuple[int, str], tuple[str, object]]:
    """For each place that can be written: its name, and what it holds."""
    found: dict[tuple[int, str], tuple[str, object]] = {}
    for owner, kind, name, value in _places(registry):
        found[id(owner), name] = f"{kind}.{name}", _seen(value)
    return found


def written(before: Mapping[Any, tuple[str, object]], after: Mapping[Any, tuple[str, object]]) -> set[str]:
    """Names of the places that were there before and hold something else now."""
    return {name for key, (name, seen) in before.items() if key in after and after[key][1] != seen}


def _seen(value: Any) -> object:
    if isinstance(value, PLAIN):
        return value
    return id(value), len(value) if isinstance(value, Sized) else repr(value) if type(value).__name__ == "count" else 0


def _places(registry: Registry) -> Iterator[tuple[Any, str, str, Any]]:
    """(owner, its kind, name, value) of what replacements and our modules reach."""
    todo: list[Any] = [installed.after for installed in registry._installed]
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == OURS:
            for name, value in list(vars(module).items()):
                if not isinstance(value, ModuleType | FunctionType | type):
                    todo.append(value)
                    yield module, _short(module_name), name, value
    visited: set[int] = set()
    while todo:
        each = todo.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        for owner, kind, name, value in _held_by(each):
            todo.append(value)
            yield owner, kind, name, value
        todo += _called_by(each)


def _held_by(each: Any) -> Iterator[tuple[Any, str, str, Any]]:
    if isinstance(each, FunctionType):
        for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
            yield cell, f"{_short(each.__module__)}.{each.__qualname__}", name, _content(cell)
    elif type(each).__module__.split(".")[0] == OURS and not isinstance(each, type):
        for name, value in _attributes(each):
            yield each, type(each).__name__, name, value


def _called_by(each: Any) -> list[Any]:
    if isinstance(each, MethodType):
        return [each.__self__, each.__func__]
    if isinstance(each, partial):
        return [each.func, *each.args, *each.keywords.values()]
    return [each.__func__] if isinstance(each, staticmethod | classmethod) else []


def _short(module_name: str) -> str:
    return module_name.removeprefix(f"{OURS}.")


def _attributes(each: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(each, "__dict__", {}).items())
    for kind in type(each).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(each, name):
                yield name, getattr(each, name)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
