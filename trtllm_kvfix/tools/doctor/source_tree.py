"""A TensorRT-LLM that is examined without being imported: a source tree, or an unpacked wheel.

Each module is read as text, and only its classes and functions are made: without decorators, defaults and annotations,
under bases that are known, and never called. So probes see names, signatures and source as in a process that runs
it, and nothing of it runs here.

Bound classes are read from the stubs of a wheel (`.pyi`), or from the nanobind sources of a tree: names of classes and
methods, and of their arguments. That reads text, not C++: a `.def("name", ...)` belongs to the class of the last
`nb::class_<...>(m, "Name")` before it. A method without `nb::arg` is positional only, as nanobind makes it.
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

_BOUND_FOLDERS = ("cpp/tensorrt_llm/nanobind", "cpp/tensorrt_llm/pybind")
_BOUND_FILES = {
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
        for folder in _BOUND_FOLDERS:
            for file in _BOUND_FILES[name]:
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
