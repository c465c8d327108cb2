"""The rig on upstream's source needs torch and excerpts, so most machines skip it. A name of ours that it imports, uses
or patches, and that has moved, shows here."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trtllm_kvfix.errors import NotServed

ROOT = Path(__file__).parent.parent
RIG = sorted((ROOT / "integration" / "upstream").glob("*.py"))
OURS = ("trtllm_kvfix", "tests")


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def has(owner: Any, name: str) -> bool:
    """Classes that are made on demand are there, even where TensorRT-LLM is not."""
    try:
        return hasattr(owner, name)
    except NotServed:
        return True


def imported(tree: ast.Module) -> Iterator[tuple[str, str, str | None]]:
    """The local name, the module, and the name in the module, or nothing for the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and is_ours(node.module):
            yield from ((each.asname or each.name, node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            for each in node.names:
                if is_ours(each.name):
                    top = each.name.partition(".")[0]
                    yield each.asname or top, each.name if each.asname else top, None


def lacking(source: str) -> list[str]:
    """The names of ours that are not there, as they are written."""
    tree = ast.parse(source)
    bound: dict[str, Any] = {}
    found = []
    for local, module, name in imported(tree):
        owner = importlib.import_module(module)
        if name is None:
            bound[local] = owner
        elif has(owner, name):
            bound[local] = getattr(owner, name)
        else:
            try:
                bound[local] = importlib.import_module(f"{module}.{name}")
            except ModuleNotFoundError:
                found.append(f"{module}.{name}")
    return sorted({*found, *_missing_attributes(tree, bound), *_missing_patches(tree, bound)})


def _missing_attributes(tree: ast.Module, bound: dict[str, Any]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = _resolved(node.value, bound)
            if owner is not None and not has(owner, node.attr):
                yield ast.unparse(node)


def _missing_patches(tree: ast.Module, bound: dict[str, Any]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("patch.object") and len(node.args) > 1:
            target, written = node.args[:2]
            owner = _resolved(target, bound)
            name = written.value if isinstance(written, ast.Constant) else None
            if owner is not None and isinstance(name, str) and not has(owner, name):
                yield f"{ast.unparse(target)}.{name}"


def _resolved(node: ast.expr, bound: dict[str, Any]) -> Any:
    """The object, if it is ours and known without running anything."""
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute) and has(owner := _resolved(node.value, bound), node.attr):
        return vars(owner).get(node.attr) if isinstance(owner, ModuleType) else getattr(owner, node.attr)
    return None


@pytest.mark.parametrize("path", RIG, ids=[path.stem for path in RIG])
def test_the_rig_names_only_what_is_there(path: Path) -> None:
    assert lacking(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("from trtllm_kvfix import moved", ["trtllm_kvfix.moved"]),
        ("from trtllm_kvfix.staging import moved", ["trtllm_kvfix.staging.moved"]),
        ("from trtllm_kvfix import native\nnative.Device.moved()", ["native.Device.moved"]),
        ("from trtllm_kvfix import native\nmock.patch.object(native.Device, 'moved', None)", ["native.Device.moved"]),
    ],
)
def test_a_name_that_has_moved_is_told(source: str, told: list[str]) -> None:
    assert lacking(source) == told
