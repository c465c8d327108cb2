"""An import environment for a tree of TensorRT-LLM's Python: bindings and helpers of ours, the tree's files, doubles.

`__init__.py` of packages is not run except where it is a seam: in a whole checkout it would import all of the product,
with CUDA. A file of the tree that cannot be imported here is doubled, too, and both are listed.
"""

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from integration.upstream.assemble import EXCERPTS
from integration.upstream.doubles import DoubledModule, answer_for
from integration.upstream.heads import supply
from integration.upstream.provided import head_names

PACKAGE = "tensorrt_llm"
# Packages of other projects that upstream's modules name and this environment may lack.
FOREIGN = ("cuda", "flashinfer", "mpi4py", "nvtx", "pynvml", "ray", "strenum", "transformers", "triton", "zmq")

# Modules that the overlay replaces and the scenarios run. They must come from the tree, or the scenario is not run.
SEAMS = (
    "_torch.pyexecutor.py_executor",
    "_torch.pyexecutor.resource_manager",
    "_torch.pyexecutor.llm_request",
    "_torch.pyexecutor.kv_cache_connector",
    "_torch.pyexecutor.connectors.kv_cache_connector",
    "_torch.pyexecutor.connectors.kv_cache_layout",
    "_torch.pyexecutor.kv_cache.kv_cache_manager_v2",
    "_torch.pyexecutor.kv_cache_manager_v2",
    "_torch.pyexecutor.model_engine",
    "_torch.pyexecutor.cuda_graph_runner",
    "_torch.attention_backend.trtllm",
    "_torch.attention.backends.trtllm",
)


class Tree(MetaPathFinder):
    """Finds modules below `tensorrt_llm` in a tree, among ours, or as doubles."""

    def __init__(self, root: Path, provided: Mapping[str, ModuleType]) -> None:
        self.root = root
        self.provided = provided
        self.is_excerpts = (root / EXCERPTS).exists()
        self.real: list[str] = []
        self.shadowed: set[str] = set()  # modules of the tree in whose place one of ours runs
        # By class: methods of ours, where no excerpt has one, or where upstream's wants bindings that nobody has read.
        self.lacking: dict[str, list[str]] = {"KVCacheManager": [], "PyExecutor": []}
        self.v2_runtime = ""  # whose it is
        self.constructors: dict[str, Any] = {}  # of upstream, by class, also where one of ours is in use
        self.doubled: dict[str, str] = {}  # module -> why
        self.supplied: dict[str, list[str]] = {}  # module -> names that no excerpt of it imports

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        top = name.split(".", maxsplit=1)[0]
        if top in FOREIGN and not self._is_foreign_missing(top):
            return None
        if top != PACKAGE and top not in FOREIGN:
            return None
        if name in self.provided:
            if self._file(name).exists():
                self.shadowed.add(name)
            return ModuleSpec(name, _Ready(self.provided[name]), is_package=True)
        file = self._file(name)
        if top == PACKAGE and file.exists():
            return importlib.util.spec_from_file_location(name, file, loader=FromTree(name, str(file), self))
        if _asked_by_overlay() and not file.with_suffix("").is_dir():
            return None
        self.doubled.setdefault(name, "not in the tree" if not file.with_suffix("").is_dir() else "a package")
        return ModuleSpec(name, _Ready(DoubledModule(name)), is_package=True)

    def _file(self, name: str) -> Path:
        return self.root.joinpath(*name.split(".")).with_suffix(".py")

    def _is_foreign_missing(self, top: str) -> bool:
        others = [each for each in sys.meta_path if each is not self]
        return not any(each.find_spec(top, None) for each in others if hasattr(each, "find_spec"))

    @property
    def missing_seams(self) -> list[str]:
        return [name for name in SEAMS if f"{PACKAGE}.{name}" not in self.real]


def _asked_by_overlay() -> bool:
    """The overlay asks whether a module exists; a double is none."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).split(".")[0] == "trtllm_kvfix"


class _Ready(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


class FromTree(SourceFileLoader):
    """Runs a file of the tree. One that is no seam and fails is doubled."""

    def __init__(self, name: str, path: str, tree: Tree) -> None:
        super().__init__(name, path)
        self._tree = tree

    def exec_module(self, module: ModuleType) -> None:
        is_seam = module.__name__.removeprefix(f"{PACKAGE}.") in SEAMS
        names = supply(module.__name__, Path(self.path).read_text(encoding="utf-8"), head_names(self._tree.provided))
        if names:
            vars(module).update(names)
            self._tree.supplied[module.__name__] = sorted(names)
        if self._tree.is_excerpts:
            noted = self._tree.supplied.setdefault(module.__name__, [])
            vars(module)["__getattr__"] = answer_for(module, noted)
        try:
            super().exec_module(module)
        except Exception as error:
            if is_seam:
                raise
            self._tree.doubled[module.__name__] = f"{type(error).__name__}: {error}"
            sys.modules[module.__name__] = DoubledModule(module.__name__)
            return
        self._tree.real.append(module.__name__)


@contextmanager
def environment(root: Path, provided: Mapping[str, ModuleType]) -> Iterator[Tree]:
    """Inside, `tensorrt_llm` is the tree's. A process holds one at a time."""
    if any(name.split(".")[0] == PACKAGE for name in sys.modules):
        raise RuntimeError("tensorrt_llm is imported already")
    tree = Tree(root, provided)
    before = set(sys.modules)
    sys.meta_path.insert(0, tree)
    try:
        yield tree
    finally:
        sys.meta_path.remove(tree)
        for name in set(sys.modules) - before:
            if name.split(".")[0] in (PACKAGE, *FOREIGN):
                del sys.modules[name]
