"""C++ binds these as each era declares them: the extension of tests/bound, built apart from the stand-in."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .variant import COMPUTED_ONLY, MANGLED, NAME

ROOT = Path(__file__).resolve().parents[4]
FOLDER = Path(os.environ.get("KVFIX_BOUND") or ROOT / "build" / "bound")

# S is stable 1.2. Nobody has read the bindings of D and later; the extension takes them for C's.
ERAS = {"A": "A", "B": "S", "B2": "B2", "C": "C", "D": "D", "F": "D"}


def _load() -> Any:
    """One per process, whatever variants come and go: an extension cannot be taken out again."""
    if "kvfix_bound" in sys.modules:
        return sys.modules["kvfix_bound"]
    built = next(FOLDER.glob("kvfix_bound.*.so"), None)
    if built is None:
        raise ImportError(f"no kvfix_bound in {FOLDER}: run `make bound`, or set KVFIX_BOUND to where it is built")
    spec = importlib.util.spec_from_file_location("kvfix_bound", built)
    assert spec is not None and spec.loader is not None
    module = sys.modules["kvfix_bound"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_tensor(shape: Sequence[int], dtype: str, pinned: bool) -> Any:
    """The extension outlives the stand-in's modules, so it holds none of them."""
    if pinned and dtype == "int32":
        return importlib.import_module("tensorrt_llm._standin.tensors").tensors().pinned(*shape)
    return np.zeros(shape, dtype)


bound = _load()
bound.set_tensor_factory(make_tensor)
era: Any = getattr(bound, "C" if MANGLED else ERAS[NAME])
era.set_computed_only(COMPUTED_ONLY)
