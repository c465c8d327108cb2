"""Names that a file of excerpts uses and nowhere binds: its imports lie outside of the excerpts."""

import ast
import builtins
import dataclasses
import typing
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from integration.upstream.doubles import double


def free_names(source: str) -> set[str]:
    """Approximate: a name that is bound anywhere in the file counts as bound."""
    loaded: set[str] = set()
    bound: set[str] = set(vars(builtins)) | {"__file__", "__name__"}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                loaded.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.arg(arg=name):
                bound.add(name)
            case ast.alias():
                bound.add((node.asname or node.name).split(".")[0])
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case _:
                pass
    return loaded - bound


def supply(module_name: str, source: str, provided: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each free name: the standard one, ours, or a double."""
    standard: dict[str, Any] = {"torch": torch, "weakref": weakref}
    found: dict[str, Any] = {}
    for name in sorted(free_names(source)):
        for place in (standard, vars(typing), vars(dataclasses), provided):
            if name in place:
                found[name] = place[name]
                break
        else:
            found[name] = double(f"{module_name}.{name}")
    return found
