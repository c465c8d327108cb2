"""Features of an installed build, looked up without changing what it imports."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.overlay.upstream_double import EXECUTOR, python
from trtllm_kvfix.overlay.upstream import Upstream


def test_nothing_is_imported_to_answer(small: Path) -> None:
    code = f"""
import sys
from trtllm_kvfix.overlay.upstream import Upstream, exists
print(exists("{EXECUTOR}.resource_manager"), exists("{EXECUTOR}.absent"), exists("absent.module"), exists("json.tool"))
print(Upstream().resource_manager, [name for name in sys.modules if name.startswith("tensorrt_llm")])
up = Upstream(may_import=True)
print(up.has("{EXECUTOR}.resource_manager", "KVCacheManager.prepare_resources"), up.v2_module, up.attention_module)
print(up.parameters(up.attribute("{EXECUTOR}.resource_manager", "KVCacheManager.prepare_resources")))
print(Upstream().resource_manager is up.resource_manager)
"""
    assert python(small, code).stdout.splitlines() == [
        "True False False True",
        "None []",
        "True None None",
        "('self', 'batch')",
        "True",
    ]


def test_module_that_is_hidden_by_a_finder_does_not_exist(small: Path) -> None:
    code = f"""
import sys
class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("resource_manager"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hides())
from trtllm_kvfix.overlay.upstream import exists
print(exists("{EXECUTOR}.resource_manager"), exists("{EXECUTOR}.py_executor"))
"""
    assert python(small, code).stdout == "False True\n"


def test_module_that_ends_the_program_does_not_end_an_examination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "that_ends.py").write_text("import sys; sys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="that_ends ends the program that imports it: 0"):
        Upstream(may_import=True).module("that_ends")


def test_module_that_is_being_imported_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("tensorrt_llm")
    spec: Any = ModuleSpec("tensorrt_llm", None)
    module.__spec__ = spec
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    assert Upstream().module("tensorrt_llm") is module
    spec._initializing = True
    assert Upstream().module("tensorrt_llm") is None


def test_parameters_of_bound_functions_come_from_their_documentation() -> None:
    class Bound:
        __doc__ = (
            "copy(input: torch.Tensor, index: list[tuple[int, int, str]], scale: int = 1, stream: int) -> None\nText"
        )

        def __call__(self, *values: Any) -> None: ...

        __signature__ = "none that can be read"

    names = ("input", "index", "scale", "stream")
    assert Upstream().parameters(Bound()) == names
    assert Upstream().parameters(None) == ()
    assert Upstream().source(Bound()) is None
