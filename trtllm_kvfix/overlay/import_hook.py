"""A finder that finds nothing itself: it waits for `tensorrt_llm`, and then for the modules that fixes replace.

It is registered in every interpreter of an environment where the hook is enabled, so until TensorRT-LLM is imported it
costs one dictionary look-up for each import and brings in nothing, not even `typing`. Its switch is read only then:
workers that MPI spawns get their variables after their interpreter has started.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Finder:
    def __init__(self) -> None:
        # Called when the module is looked for, before it runs.
        self.before: dict[str, Callable[[], None]] = {}
        # Called when the module's body has run, before its importer gets the module.
        self.after: dict[str, Callable[[ModuleType], None]] = {}
        self._searching: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name in self.before:
            self.before[name]()  # what it raises fails this import, and the next one, too
            self.before.pop(name, None)
        if name not in self.after:
            return None
        from threading import get_ident  # noqa: PLC0415  see above

        # Other tools have finders like this one, which ask us in turn. We answer None then, to avoid an endless
        # recursion.
        search = (get_ident(), name)
        if search in self._searching:
            return None
        self._searching.add(search)
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._searching.discard(search)
        if spec is not None and spec.loader is not None:
            _call_after(spec, self.after[name])
        return spec


finder = Finder()


def install() -> None:
    """Install the hook at the start of an interpreter. The switch is read when TensorRT-LLM is imported."""
    if finder not in sys.meta_path:
        finder.before["tensorrt_llm"] = begin
        sys.meta_path.insert(0, finder)


def watch(names: "Iterable[str]", call: "Callable[[ModuleType], None]") -> None:
    """Call when each of these modules has run; the switch has been read, so nothing waits for TensorRT-LLM itself."""
    finder.before.clear()
    finder.after.update(dict.fromkeys(names, call))
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)


def remove() -> None:
    finder.before.clear()
    finder.after.clear()
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


def begin() -> None:
    """The switch comes first: with it off, nothing is imported that the fixes need."""
    from trtllm_kvfix.overlay import bypass  # noqa: PLC0415  only where TensorRT-LLM is

    if not bypass.begin():
        from trtllm_kvfix import process  # noqa: PLC0415  the same

        process.begin()


def _found_by_others(us: Finder, name: str, path: "Any", target: "Any") -> "ModuleSpec | None":
    for other in list(sys.meta_path):
        find = getattr(other, "find_spec", None)
        if other is us or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def _call_after(spec: "ModuleSpec", call: "Callable[[ModuleType], None]") -> None:
    """Shadow `exec_module` on this one loader for one execution, so that the loader stays what others expect it to be.

    What `call` raises fails the import: nobody gets a module that should have been fixed and was not.
    """
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        if module.__spec__ is not spec:  # a loader may serve several modules
            execute(module)
            return
        vars(loader).pop("exec_module", None)
        execute(module)
        call(module)

    loader.exec_module = exec_module
