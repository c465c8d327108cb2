"""The table of layers in docs/design.md, and what breaks it: an import or an include that no row allows."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "trtllm_kvfix"
HOSTRACE = "watch/src"  # a package of its own, which runs without this one
# The package itself, the module that Python runs, and data that is no layer.
NO_LAYERS = {"__init__", "__main__", "__version__", "_core"}
# The way up that docs/design.md names.
WAYS_UP = {("overlay/import_hook.py", "process")}
# Headers that only the layer named here includes.
FOREIGN = {"nanobind/": "cpp/bindings", "Python.h": "cpp/bindings", "cuda.h": "cpp/kernels", "torch/": ""}

Table = Mapping[str, frozenset[str]]


def table(page: str) -> Table:
    """Each layer and those that it may know."""
    section = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)` \| (.*?) \|", section, re.MULTILINE)
    return {name: frozenset(re.findall(r"`([\w/]+)`", known)) for name, known in rows}


def python_complaints(layers: Table, file: str, text: str) -> Iterator[str]:
    """`file` is relative to the package; what is not part of it begins with the name of its layer."""
    layer = HOSTRACE if file.startswith(f"{HOSTRACE}/") else file.split("/", maxsplit=1)[0].removesuffix(".py")
    if layer in NO_LAYERS:
        return
    if layer not in layers:
        yield f"{file}: `{layer}` has no row in the table of layers"
        return
    free = set() if layer == HOSTRACE else NO_LAYERS
    for line, known in _imported(text):
        if known not in {layer, *layers[layer], *free} and (file, known) not in WAYS_UP:
            yield f"{file}:{line}: `{layer}` imports `{known}`, which its row does not allow"


def cpp_complaints(layers: Table, file: str, text: str) -> Iterator[str]:
    """`file` is relative to the repository, such as cpp/core/types.h."""
    layer = "/".join(file.split("/")[:2])
    if layer not in layers:
        yield f"{file}: `{layer}` has no row in the table of layers"
        return
    for found in re.finditer(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", text, re.MULTILINE):
        included = found[1]
        known = f"cpp/{included.split('/')[0]}"
        if known in layers and known not in {layer, *layers[layer]}:
            yield f"{file}: `{layer}` includes {included}, which its row does not allow"
        for name, owner in FOREIGN.items():
            if included.startswith(name) and layer != owner:
                yield f"{file}: {included} belongs to {owner or 'no layer'}"


def _imported(text: str) -> Iterator[tuple[int, str]]:
    """(line, layer) of each import of ours that runs, inside functions too."""
    tree = ast.parse(text)
    only_types = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            modules = [f"{PACKAGE}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            parts = [*module.split("."), "__init__"]
            if parts[0] == PACKAGE:
                yield node.lineno, parts[1]
            elif parts[0] == "hostrace":
                yield node.lineno, HOSTRACE


def goes_down(layers: Table) -> Iterator[str]:
    """A layer knows only rows above its own, but for `native` and `errors`, which are one."""
    order = list(layers)
    for name, known in layers.items():
        for each in known:
            if each not in order:
                yield f"`{name}` may know `{each}`, which has no row"
            elif order.index(each) > order.index(name) and {name, each} != {"native", "errors"}:
                yield f"`{name}` may know `{each}`, whose row is below its own"
