"""Which host buffers of the installed TensorRT-LLM are copied asynchronously while their owner goes on writing them.

Upstream's source is read, not run: every `x.copy_(owner.buffer, non_blocking=True)` ships memory that an object keeps,
so a later step may refill it before the copy has read it (docs/hazards). Whether one is pinned, and whether something
else orders its refill, cannot be told from the source: these are candidates, with what guards them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

METHODS = ("copy_", "to", "cuda")
# Sources that are on the device, by upstream's naming; copies from them do not read host memory.
ON_DEVICE = re.compile(r"(_cuda|_device|_gpu|_d)$|^(cuda|device)_|_device_")
# What our fixes mend at source, by the names of the buffer and of its file.
MENDED = (
    (re.compile(r"^_?host_(kv_cache_block_offsets|scratch_\w+_staging)$"), re.compile(r"v2"), "staged-offsets-v2"),
    (re.compile(r"^host_kv_cache_block_offsets$"), re.compile(r"resource_manager|trtllm"), "staged-offsets-v1"),
)
FENCE = "input-copy-fence"
# Its engine is none that a fence knows, ours or upstream's.
UNFENCED = "_torch/auto_deploy/"


@dataclass(frozen=True)
class Buffer:
    file: str  # relative to the package
    line: int
    name: str

    @property
    def guards(self) -> tuple[str, ...]:
        """The fixes that keep it safe, the one that stages it before the fence before the next scheduling step."""
        staging = tuple(fix_id for name, file, fix_id in MENDED if name.search(self.name) and file.search(self.file))
        return staging if self.file.startswith(UNFENCED) else (*staging, FENCE)


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
