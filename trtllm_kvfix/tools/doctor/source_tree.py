"""A TensorRT-LLM that is examined without being imported: a source tree, or an unpacked wheel.

Each module is read as text, and only its classes and functions are made: without decorators, defaults and annotations,
under bases that are known, and never called. So probes see names, signatures and source as in a process that runs
it, and nothing of it runs here. Bound classes are read from the stubs of a wheel (`.pyi`), or from the nanobind
sources of a tree.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, text_of
from trtllm_kvfix.overlay.upstream import BINDINGS, PACKAGE, V2_UTILS, Upstream
from trtllm_kvfix.tools.doctor.bound_source import BoundSources, Unread


class SourceTree(Upstream):
    """`folder` holds the package `tensorrt_llm`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.package = folder / PACKAGE
        if not self.package.is_dir():
            raise SettingsError(
                f"--source is {folder}, where no folder {PACKAGE} is; give the folder that holds it: the root of a "
                "checkout, or of an unpacked wheel"
            )
        self.unreadable: dict[str, str] = {}  # module: why
        self._folder = folder
        self._modules: dict[str, ModuleType | None] = {}

    def module(self, name: str) -> ModuleType | None:
        if name not in self._modules:
            self._modules[name] = None  # what imports itself in a circle sees nothing
            self._modules[name] = self._read(name)
        return self._modules[name]

    @property
    def knows_bindings(self) -> bool:
        return self.module(BINDINGS) is not None

    def version(self) -> str | None:
        """The version as the package states it, without running the package."""
        try:
            text = text_of(self.package / "version.py", SOURCE_BYTES_MAX, errors="replace")
        except (OSError, ValueError):
            return None
        found = re.search(r"^__version__\s*=\s*[\"']([^\"']+)", text, re.MULTILINE)
        return found[1] if found else None

    def _read(self, name: str) -> ModuleType | None:
        if name in (BINDINGS, V2_UTILS):
            return self._bound(name)
        if name.split(".", maxsplit=1)[0] != PACKAGE:
            return None
        path = self._folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py", path.with_suffix(".pyi"), path / "__init__.pyi"):
            if file.is_file():
                return self._made(name, file)
        return None

    def _bound(self, name: str) -> ModuleType | None:
        path = self._folder.joinpath(*name.split("."))
        for file in (path.with_suffix(".pyi"), path / "__init__.pyi"):
            if file.is_file():
                return self._made(name, file)
        try:
            return BoundSources(self._folder).module(name)
        except (OSError, ValueError) as error:
            self.unreadable[name] = f"its sources in {self._folder}: {error}"
            return None

    def _made(self, name: str, file: Path) -> ModuleType | None:
        try:
            tree = ast.parse(text_of(file, SOURCE_BYTES_MAX, errors="replace"))
        except SyntaxError as error:
            self.unreadable[name] = f"{file.relative_to(self._folder)}:{error.lineno}: {error.msg}"
            return None
        except (OSError, ValueError) as error:
            self.unreadable[name] = f"{file.relative_to(self._folder)}: {error}"
            return None
        module = ModuleType(name)
        module.__file__ = str(file)
        for node in _definitions(tree.body):
            if isinstance(node, ast.ImportFrom):
                self._import(module, node)
            else:
                _define(module, node, file)
        return module

    def _import(self, module: ModuleType, node: ast.ImportFrom) -> None:
        """Resolve names that come from elsewhere in the tree; names that are not there are left out."""
        base = node.module or ""
        if node.level:
            parents = module.__name__.split(".")
            is_package = Path(str(module.__file__)).name.startswith("__init__")
            above = parents[: len(parents) - node.level + is_package]
            base = ".".join([*above, *([base] if base else [])])
        if base.split(".")[0] != PACKAGE:
            return
        for alias in node.names:
            found: Any = self.module(f"{base}.{alias.name}")
            if found is None:
                source = self.module(base)
                # A name that comes from compiled code is there, and that is all that is known.
                absent = Unread(alias.name, base) if base.startswith(f"{PACKAGE}.bindings") else None
                found = getattr(source, alias.name, absent) if source is not None else absent
            if found is not None:
                setattr(module, alias.asname or alias.name, found)


def _definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Classes, functions and imports, also those under an `if` or a `try` of the module."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _definitions(node.body)
            yield from _definitions(node.orelse)


def _define(module: ModuleType, node: ast.stmt, file: Path) -> None:
    bare = _Bare(vars(module)).visit(node)
    code = compile(ast.fix_missing_locations(ast.Module([bare], type_ignores=[])), str(file), "exec")
    exec(code, vars(module))


class _Bare(ast.NodeTransformer):
    """A definition of which nothing may run: names, parameters, and a body that is never called."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        kept = [self.visit(each) for each in node.body if isinstance(each, ast.ClassDef | ast.FunctionDef)]
        named = [base for base in node.bases if isinstance(base, ast.Name)]
        bases: list[ast.expr] = [base for base in named if isinstance(self._known.get(base.id), type)]
        bare = ast.ClassDef(name=node.name, bases=bases, keywords=[], body=kept or [ast.Pass()], decorator_list=[])
        return ast.copy_location(bare, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        wrappers = {"staticmethod", "classmethod", "property"}
        node.decorator_list = [
            each for each in node.decorator_list if isinstance(each, ast.Name) and each.id in wrappers
        ]
        node.returns = None
        node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
        node.args.kw_defaults = [None if each is None else ast.Constant(None) for each in node.args.kw_defaults]
        rest = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *rest):
            argument.annotation = None
        return node  # its body is compiled and never runs

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return ast.copy_location(ast.parse(f"def {node.name}(*args, **kwargs): ...").body[0], node)
