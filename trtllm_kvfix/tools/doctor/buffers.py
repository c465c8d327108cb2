"""Which host buffers of the installed TensorRT-LLM are copied asynchronously while their owner goes on writing them.

Upstream's source is read, not run: every `x.copy_(owner.buffer, non_blocking=True)` ships memory that an object keeps,
so a later step may refill it before the copy has read it (docs/hazards). Whether one is pinned, and whether something
else orders its refill, cannot be told from the source: these are candidates, with what guards them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trtllm_kvfix.overlay.fix import Fix

METHODS = ("copy_", "to", "cuda")
# Sources that are on the device, by upstream's naming; copies from them do not read host memory.
ON_DEVICE = re.compile(r"(_cuda|_device|_gpu|_d)$|^(cuda|device)_|_device_")


@dataclass(frozen=True)
class Buffer:
    file: str  # relative to the package
    line: int
    name: str

    def guards(self, fixes: Iterable[Fix]) -> tuple[str, ...]:
        """The fixes that keep it safe, in their order: what stages it comes before the fence before the next step."""
        return tuple(
            fix.id
            for fix in fixes
            if any(re.search(each.buffer, self.name) and re.search(each.file, self.file) for each in fix.guards)
        )


def candidates(package: Path) -> list[Buffer]:
    """All of them in the folder of a package, one for each buffer and file."""
    found: dict[tuple[str, str], Buffer] = {}
    for file in sorted(package.glob("_torch/**/*.py")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if "non_blocking=True" not in text:
            continue
        where = file.relative_to(package).as_posix()
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue  # written for a later Python than this one
        for line, name in _shipped(tree):
            found.setdefault((where, name), Buffer(where, line, name))
    return list(found.values())


def _shipped(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
            continue
        if not any(each.arg == "non_blocking" and _is_true(each.value) for each in node.keywords):
            continue
        source = node.args[0] if node.func.attr == "copy_" and node.args else node.func.value
        name = _kept(source)
        if name is not None and not ON_DEVICE.search(name):
            yield node.lineno, name


def _kept(source: ast.expr) -> str | None:
    """`self.buffer[rows, :n]` and `metadata.owner.buffer` keep `buffer`; a call in between makes memory of its own."""
    while isinstance(source, ast.Subscript):
        source = source.value
    if not isinstance(source, ast.Attribute):
        return None
    owner = source.value
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return source.attr if isinstance(owner, ast.Name) else None


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
