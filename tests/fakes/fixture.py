"""Imports the stand-in as `tensorrt_llm`, in one variant, and takes it out again."""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

FAKES = Path(__file__).resolve().parent
VARIANTS = ("A", "B", "C", "D", "F")


@contextmanager
def upstream(variant: str, device: str = "cpu") -> Iterator[ModuleType]:
    """`tensorrt_llm` and all of its submodules exist inside the block only. device: 'cpu' is simulated, or 'cuda'."""
    present = _modules()
    if present:
        raise RuntimeError(f"{present[0]} is imported already; a process holds one tensorrt_llm at a time")
    chosen = {"FAKE_TRTLLM_VARIANT": variant, "FAKE_TRTLLM_DEVICE": device}
    sys.path.insert(0, str(FAKES))
    try:
        with mock.patch.dict("os.environ", chosen):
            yield importlib.import_module("tensorrt_llm")
    finally:
        sys.path.remove(str(FAKES))
        for name in _modules():
            del sys.modules[name]
        gc.collect()  # modules are cycles, and what they hold has device memory


def _modules() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]
