"""Imports the stand-in as `tensorrt_llm`, in one variant, and takes it out again."""

import gc
import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

STANDIN = Path(__file__).resolve().parent
VARIANTS = ("A", "B", "B2", "C", "D", "F")


@contextmanager
def upstream(variant: str, device: str | None = None, *, nixl: bool = False) -> Iterator[ModuleType]:
    """`tensorrt_llm` and all of its submodules exist inside the block only.

    device: 'cpu' (simulated), 'torch' or 'cuda' (memory of our own on a GPU, whose release waits for held streams); by
    default what STANDIN_DEVICE says, else 'cpu'. nixl: put that one's stand-in beside it.
    """
    names = {"tensorrt_llm", "nixl"} if nixl else {"tensorrt_llm"}
    present = _modules(names)
    if present:
        raise RuntimeError(f"{present[0]} is imported already; a process holds one at a time")
    chosen = {"STANDIN_VARIANT": variant} | ({} if device is None else {"STANDIN_DEVICE": device})
    paths = [str(STANDIN), str(STANDIN / "with_nixl")] if nixl else [str(STANDIN)]
    sys.path[:0] = paths
    try:
        with mock.patch.dict("os.environ", chosen):
            yield importlib.import_module("tensorrt_llm")
    finally:
        for path in paths:
            sys.path.remove(path)
        # The stand-in's own finder goes too.
        sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__.split(".")[0] != "tensorrt_llm"]
        for name in _modules(names):
            del sys.modules[name]
        gc.collect()  # modules are cycles, and what they hold has device memory


def _modules(packages: set[str]) -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] in packages]


def as_release(folder: Path, version: str, *, v2: bool) -> Path:
    """A copy of the stand-in that is installed in `folder` under a version number, with V2 as the default manager or
    not: no variant of the stand-in has that default."""
    shutil.copytree(STANDIN / "tensorrt_llm", folder / "tensorrt_llm", ignore=shutil.ignore_patterns("__pycache__"))
    arguments = folder / "tensorrt_llm" / "llmapi" / "llm_args.py"
    before = "use_kv_cache_manager_v2: bool = False"
    text = arguments.read_text()
    if text.count(before) != 1:
        raise AssertionError(f"{arguments} does not say once: {before}")
    arguments.write_text(text.replace(before, f"use_kv_cache_manager_v2: bool = {v2}"))
    record = folder / f"tensorrt_llm-{version}.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
    return folder
