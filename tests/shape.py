"""The shape of the package, measured: which modules serve one other alone, how many a thing walks through, and sizes.

    python -m tests.shape

A *room* is a module of ours that a walk enters. A *walk* is the way of one thing through running code: Python's rooms,
traced. docs/design.md has the figures, and tests/test_shape.py holds them to be true, those that grow with every commit
within a tenth.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from tests.fixes.applied import applied, standing_in
from tests.layers import PACKAGE, ROOT
from tests.managers.making import bench
from tests.offload.conftest import BLOCK_BYTES, Bench
from tests.offload.test_round_trip import prompt
from tests.offload.upstream_double import Request
from tests.standin.serving import Server
from tests.tracked import tracked_files
from trtllm_kvfix.cli import COMMANDS
from trtllm_kvfix.fix_ids import FIX_IDS, room_of
from trtllm_kvfix.hazards import table
from trtllm_kvfix.native import open_device

EXECUTOR = "tensorrt_llm._torch.pyexecutor"
V2 = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}


class Walk:
    """The rooms that calls in this thread enter, inside `entered`."""

    def __init__(self) -> None:
        self.rooms: set[str] = set()

    @contextmanager
    def entered(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parts and file.is_relative_to(ROOT / PACKAGE):
            self.rooms.add(file.relative_to(ROOT / PACKAGE).as_posix())


def shipment(variant: str, fix_id: str, llm_args: dict[str, Any], module: str, name: str) -> set[str]:
    """One call in the steady state, which is the last one of a served load."""
    walks: list[Walk] = []
    with standing_in(variant), applied([fix_id]):
        owner: Any = sys.modules[module]
        *parts, attribute = name.split(".")
        for part in parts:
            owner = getattr(owner, part)
        replaced = getattr(owner, attribute)

        def traced(*args: Any, **kwargs: Any) -> Any:
            walks.append(Walk())
            with walks[-1].entered():
                return replaced(*args, **kwargs)

        with mock.patch.object(owner, attribute, traced):
            server = Server(llm_args)
            server.serve(server.workload(8))
    return walks[-1].rooms


def prompt_behind_the_native_manager() -> set[str]:
    walk = Walk()
    with bench() as made:
        made.served(1, range(10))
        request = made.request(2, range(10))
        with walk.entered():
            made.prepare([request])
    return walk.rooms


def store_in_the_host_tier() -> set[str]:
    """The whole life of a request that stores its blocks."""
    walk = Walk()
    with mock.patch.dict("os.environ", {"TRTLLM_KVFIX_OFFLOAD_HOST_BYTES": str(64 * BLOCK_BYTES)}):
        made = Bench(open_device("cpu"))
        with walk.entered():
            made.executor.submit(Request(1, prompt(1)))
            made.executor.run()
        made.close()
    return walk.rooms


WALKS: dict[str, Callable[[], set[str]]] = {
    "offsets of V1": lambda: shipment(
        "C", "staged-offsets-v1", {}, f"{EXECUTOR}.resource_manager", "KVCacheManager.copy_batch_block_offsets"
    ),
    "offsets of V2": lambda: shipment(
        "D",
        "staged-offsets-v2",
        V2,
        f"{EXECUTOR}.kv_cache.kv_cache_manager_v2",
        "KVCacheManagerV2.copy_batch_block_offsets",
    ),
    "a prompt behind the native manager": prompt_behind_the_native_manager,
    "a store in the host tier": store_in_the_host_tier,
}


@cache
def importers() -> dict[str, set[str]]:
    """For each module of ours that is no package's face: the modules that import it, by name or by a name in it.

    Who takes a name from a face imports the module that the face has it from.
    """
    files = {_name(file): file for file in (ROOT / PACKAGE).rglob("*.py")}
    imports = {name: set(_imported(ast.parse(file.read_text()))) for name, file in files.items()}
    faces = {name for name, file in files.items() if file.name == "__init__.py"}
    behind = {f"{face}.{name.rpartition('.')[2]}": name.rpartition(".")[0] for face in faces for name in imports[face]}
    found: dict[str, set[str]] = defaultdict(set)
    for name in files:
        for imported in imports[name]:
            module = imported if imported in files else imported.rpartition(".")[0]
            for each in {module, behind.get(imported, module)} & files.keys() - {name}:
                found[each].add(name)
    return {name: found[name] for name, file in files.items() if file.name not in {"__init__.py", "__main__.py"}}


def found_by_name() -> set[str]:
    """Commands, fixes, and what shows a hazard: a table finds them by name. They are ways in."""
    fixes = {f"{PACKAGE}.fixes.{room_of(fix_id)}.fix" for fix_id in FIX_IDS}
    rooms = {f"{PACKAGE}.hazards.{hazard.room}" for hazard in table.HAZARDS}
    shown = {f"{room}.{module}" for room in rooms for module in ("installed", "reproducer")}
    return {path.partition(":")[0] for path in COMMANDS.values()} | fixes | shown


def serving_one_alone() -> set[str]:
    """The modules that one other imports, and nothing else finds."""
    return {name for name, by in importers().items() if len(by) == 1} - found_by_name()


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def figures() -> dict[str, int]:
    return {
        "modules": len(importers()),
        "modules that serve one other alone": len(serving_one_alone()),
        **{name: len(walk()) for name, walk in WALKS.items()},
    }


# Files of source by the folders that they are in, and those below that are not meant.
PYTHON, CPP = (".py",), (".cc", ".cu", ".cuh", ".def", ".h")
SHOWS_HAZARDS = (
    f"{PACKAGE}/hazards/",
    *(f"{PACKAGE}/tools/{command}" for command in ("verify/", "selfcheck/", "demo/", "reproduce.py")),
)
SIZED: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "product, Python": (PYTHON, (f"{PACKAGE}/",), ()),
    "of it, what shows hazards": (PYTHON, SHOWS_HAZARDS, ()),
    "of it, the engine below `demo`": (PYTHON, (f"{PACKAGE}/engine/",), ()),
    "product, C++": (CPP, ("cpp/",), ("cpp/tests/", "cpp/fuzz/")),
    "tests and rigs": (PYTHON + CPP, ("tests/", "integration/", "bench/", "cpp/tests/", "cpp/fuzz/"), ()),
    "hostrace": (PYTHON + CPP, ("watch/src/", "watch/cpp/"), ("watch/cpp/tests/",)),
    "hostrace, tests": (PYTHON + CPP, ("watch/tests/", "watch/cpp/tests/", "watch/gpu/", "watch/harm/"), ()),
    "everything": (("",), ("",), ()),
}


def sizes() -> dict[str, tuple[int, int]]:
    """(files, lines) of each part."""
    lines = {file.relative_to(ROOT).as_posix(): file.read_bytes().count(b"\n") for file in tracked_files()}
    found: dict[str, tuple[int, int]] = {}
    for part, (endings, folders, others) in SIZED.items():
        of_part = [
            count
            for name, count in lines.items()
            if name.endswith(endings) and name.startswith(folders) and not name.startswith(others)
        ]
        found[part] = len(of_part), sum(of_part)
    return found


if __name__ == "__main__":
    for what, figure in figures().items():
        sys.stdout.write(f"{figure:7} {what}\n")
    for what, (files, lines) in sizes().items():
        sys.stdout.write(f"{lines:7} lines in {files} files: {what}\n")
