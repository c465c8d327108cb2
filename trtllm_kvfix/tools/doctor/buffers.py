"""Find host buffers of the installed TensorRT-LLM that are copied asynchronously while their owner writes on.

Upstream's source is read, not run: every `x.copy_(owner.buffer, non_blocking=True)` ships memory that an object keeps,
so a later step may refill it before the copy has read it (docs/hazards). The same holds for a kernel that gets a mapped
table, and for a local name of either. Memory that the same function has just allocated is not shared yet. Whether a
buffer is pinned, and whether something else orders its refill, is not visible in the source: these are candidates, with
what guards them.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_kvfix.foreign_files import SOURCE_BYTES_MAX, text_of
from trtllm_kvfix.overlay.fix import Fix

METHODS = ("copy_", "to", "cuda")
# By upstream's naming: sources that are on the device, so copies from them do not read host memory; kernels that read
# host memory when they run; and calls that return a persistent buffer.
KERNELS = ("copy_batch_block_offsets_to_device", "block_copy")
LENDERS = {"get_copy_index": "copy_index"}
ON_HOST = re.compile(r"host|pinned|_cpu$|^cpu_|copy_index")
ON_DEVICE = re.compile(r"(_cuda|_device|_gpu|_d)$|^(cuda|device)_|_device_")


@dataclass(frozen=True)
class Buffer:
    file: str  # relative to the package
    line: int
    name: str

    def guards(self, fixes: Iterable[Fix]) -> tuple[str, ...]:
        """The fixes that keep the buffer safe, in their order: staging first, then the fence before the next step."""
        return tuple(
            fix.id
            for fix in fixes
            if any(re.search(each.buffer, self.name) and re.search(each.file, self.file) for each in fix.keeps_safe)
        )


def candidates(package: Path) -> list[Buffer]:
    """All of them in the folder of a package, one for each buffer and file."""
    found: dict[tuple[str, str], Buffer] = {}
    for file in sorted(package.glob("_torch/**/*.py")):
        try:
            text = text_of(file, SOURCE_BYTES_MAX, errors="replace")
        except (OSError, ValueError):
            continue  # an editor's lock, which is a link to nowhere, a folder or a pipe of that name, or no source
        if "non_blocking=True" not in text and not any(kernel in text for kernel in KERNELS):
            continue
        where = file.relative_to(package).as_posix()
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue  # written for a later Python than this one, or nested too deeply for it
        for line, name in _shipped(tree):
            found.setdefault((where, name), Buffer(where, line, name))
    return list(found.values())


def _shipped(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _shipped_in(function)


def _shipped_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    fresh: set[str] = set()  # attributes that this function has given memory of their own
    aliases: dict[str, str] = {}  # local names for buffers that an object keeps
    for node in _in_order(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _note(node.targets[0], node.value, fresh, aliases)
        elif isinstance(node, ast.Call):
            for source in _sources(node):
                name = _kept(source, aliases)
                if name is not None and name not in fresh and not ON_DEVICE.search(name):
                    yield node.lineno, name


def _in_order(function: ast.AST) -> list[ast.AST]:
    """Nodes in the order of the text; what is nested in another function is that one's."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found += [child, *_in_order(child)]
    return sorted(found, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))


def _note(target: ast.expr, value: ast.expr, fresh: set[str], aliases: dict[str, str]) -> None:
    if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
        fresh.add(target.attr)
    elif isinstance(target, ast.Name):
        aliases.pop(target.id, None)
        called = value.func if isinstance(value, ast.Call) else None
        lent = LENDERS.get(called.attr) if isinstance(called, ast.Attribute) else None
        name = lent or _kept(value, aliases)
        if name is not None:
            aliases[target.id] = name


def _sources(call: ast.Call) -> list[ast.expr]:
    """Return the arguments that the device reads after the call has returned."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called in KERNELS:
        return [each for each in call.args if ON_HOST.search(ast.unparse(each)) or isinstance(each, ast.Name)]
    if called not in METHODS or not isinstance(call.func, ast.Attribute):
        return []
    if not any(each.arg == "non_blocking" and _is_true(each.value) for each in call.keywords):
        return []
    return [call.args[0] if called == "copy_" and call.args else call.func.value]


def _kept(source: ast.expr, aliases: Mapping[str, str]) -> str | None:
    """`self.buffer[rows, :n]` and `metadata.owner.buffer` keep `buffer`; a call in between allocates its own memory."""
    while isinstance(source, ast.Subscript):
        source = source.value
    if isinstance(source, ast.Name):
        return aliases.get(source.id)
    if not isinstance(source, ast.Attribute):
        return None
    owner = source.value
    while isinstance(owner, ast.Attribute):
        if ON_DEVICE.search(owner.attr):
            return None
        owner = owner.value
    return source.attr if isinstance(owner, ast.Name) and not ON_DEVICE.search(owner.id) else None


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
