"""Methods of upstream's classes that no excerpt holds: ours take their place, in the class itself, before it is used.

A tree that has a method runs its own. The report lists those of ours that a tree needs.
"""

import ast
import inspect
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from integration.upstream.doubles import DoubledModule

NOT_READ = ("NotAmongExcerpts: ", "TypeError: 'Double' object ")


class NotAmongExcerpts(AttributeError):
    """Upstream has it, or its constructor sets it. Nothing that ends with this has shown a hazard."""


def strict(_: Any, name: str) -> Any:
    """In the place of `lenient`, where a double would hide what an excerpt lacks."""
    raise NotAmongExcerpts(name)


def of_the_tree(name: str) -> ModuleType:
    """A module that a scenario is about, so a double in its place would show nothing."""
    module = import_module(name)
    if isinstance(module, DoubledModule):
        raise NotAmongExcerpts(name)
    return module


def is_unread(died: str) -> bool:
    """Whether a loop has ended for want of an excerpt."""
    return died.startswith(NOT_READ)


def complete(module: ModuleType, class_name: str, fallback: type, *, instead: tuple[str, ...] = ()) -> list[str]:
    """Give a class of the tree what its excerpts lack, before anybody looks at it. Returns the names.

    instead: names that the tree has and that cannot work here, since they want bindings nobody has read.
    """
    stated = _stated(module, class_name)
    names = {name for name in vars(fallback) if name != "lenient" and (not name.startswith("__") or name == "__init__")}
    return replace(module, class_name, fallback, (*(names - stated), *instead))


def replace(module: ModuleType, class_name: str, fallback: type, names: tuple[str, ...]) -> list[str]:
    """Ours in place of these."""
    own = getattr(module, class_name)
    lacking = sorted(set(names))
    for name in lacking:
        setattr(own, name, vars(fallback)[name])
    if "__init__" in lacking:
        # Nobody has read what this era's constructor sets, so flags and hooks that it would set are doubles.
        own.__getattr__ = vars(fallback)["lenient"]
    return lacking


def _stated(module: ModuleType, class_name: str) -> set[str]:
    stated: set[str] = set()
    for node in ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            stated |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return stated


def accepted(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The keywords that this era's function takes."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}
