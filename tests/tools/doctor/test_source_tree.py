"""A TensorRT-LLM that is read and not imported: what probes see of it, and that nothing of it runs."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from trtllm_kvfix import cli, fixes
from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.overlay.upstream import BINDINGS, RESOURCE_MANAGER, V2_UTILS
from trtllm_kvfix.tools.doctor.source_tree import SourceTree

MANAGER = """
import torch, os
os._exit(3)
from tensorrt_llm.bindings.internal.batch_manager.kv_cache_manager_v2_utils import launch
from tensorrt_llm.bindings.internal.batch_manager.elsewhere import unread
from .base import Base, registered
from ..absent import nothing

if torch.cuda.is_available():
    def chosen(a): ...

@registered(os._exit(4))
class KVCacheManager(Base, metaclass=os._exit(5)):
    field: int = os._exit(6)

    @property
    def wide(self) -> "Never":
        raise SystemExit

    @staticmethod
    def sized(layers: torch.Never, *, dtype=os._exit(7)): ...

    @torch.inference_mode()
    def copy_batch_block_offsets(self, dst_tensor: torch.Tensor, request_ids, beam_width=os._exit(8), *rest: torch.X):
        self.table.copy_(self.host_kv_cache_block_offsets, non_blocking=True)

    async def later(self): ...
"""
BASE = "def registered(x): ...\nclass Base:\n    def inherited(self, request): ...\n"
NANOBIND = """
    nb::class_<tbk::BaseKVCacheManager, PyKvCacheManager>(m, "BaseKVCacheManager")
        .def("remove_sequence", &BaseKVCacheManager::removeSequence, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("tokens_per_block", &BaseKVCacheManager::getTokensPerBlock)
        .def("add_token", [](Base& self, int id, bool detach) { return f(self, (id), detach); },
            nb::arg("request_id"), nb::arg("detach_swa_front_blocks") = true);
    nb::class_<KVCacheManager, BaseKVCacheManager>(m, "KVCacheManager")
        .def("scheduling_has_free_blocks", &KVCacheManager::x, nb::arg("num_required"), nb::arg("window_size"));
"""
LAUNCH = """
    m.def("launch", &launch, nb::arg("input"), nb::arg("output"), nb::arg("stream"),
        nb::call_guard<nb::gil_scoped_release>());
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "tensorrt_llm/__init__.py": "raise SystemExit(9)\n",
        "tensorrt_llm/version.py": '__version__ = "1.2.1"\n',
        "tensorrt_llm/_torch/pyexecutor/resource_manager.py": MANAGER,
        "tensorrt_llm/_torch/pyexecutor/base.py": BASE,
        "tensorrt_llm/_torch/pyexecutor/py_executor.py": "def broken(:\n",
        "cpp/tensorrt_llm/nanobind/batch_manager/kvCacheManager.cpp": NANOBIND,
        "cpp/tensorrt_llm/nanobind/batch_manager/kvCacheManagerV2Utils.cpp": LAUNCH,
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_names_signatures_and_source_are_there_and_nothing_has_run(tree: Path) -> None:
    up = SourceTree(tree)
    manager = up.attribute(RESOURCE_MANAGER, "KVCacheManager")
    assert manager is not None
    copy = manager.copy_batch_block_offsets
    assert up.parameters(copy) == ("self", "dst_tensor", "request_ids", "beam_width", "rest")
    inspect.signature(copy).bind(object(), "dst", [1], 1, 2, 3)
    assert "non_blocking=True" in (up.source(copy) or "")
    assert isinstance(vars(manager)["wide"], property) and isinstance(vars(manager)["sized"], staticmethod)
    assert up.has(RESOURCE_MANAGER, "KVCacheManager.inherited") and up.has(RESOURCE_MANAGER, "chosen")
    assert not up.has(RESOURCE_MANAGER, "nothing")
    assert up.version() == "1.2.1"


def test_bound_classes_are_read_from_the_sources_of_the_bindings(tree: Path) -> None:
    up = SourceTree(tree)
    assert up.knows_bindings
    base = up.attribute(BINDINGS, "BaseKVCacheManager")
    assert base is not None and isinstance(vars(base)["tokens_per_block"], property)
    assert up.parameters(base.remove_sequence) == ()
    assert up.parameters(base.add_token) == ("request_id", "detach_swa_front_blocks")
    assert up.has(BINDINGS, "KVCacheManager.scheduling_has_free_blocks")
    assert not up.has(BINDINGS, "BaseKVCacheManager.scheduling_has_free_blocks")
    assert up.parameters(up.attribute(RESOURCE_MANAGER, "launch")) == ("input", "output", "stream")
    assert up.parameters(up.attribute(V2_UTILS, "launch")) == ("input", "output", "stream")
    with pytest.raises(RuntimeError, match="cannot be called"):
        base.add_token(1)


def test_stubs_of_a_wheel_come_before_sources(tree: Path) -> None:
    stub = tree / "tensorrt_llm/bindings/internal/batch_manager/__init__.pyi"
    stub.parent.mkdir(parents=True)
    stub.write_text("class BaseKVCacheManager:\n    def add_token(self, request_id: int, /) -> None: ...\n")
    up = SourceTree(tree)
    assert up.parameters(up.attribute(BINDINGS, "BaseKVCacheManager.add_token")) == ("self", "request_id")


def test_a_name_from_compiled_code_that_nothing_describes_is_there_and_that_is_all(tree: Path) -> None:
    up = SourceTree(tree)
    unread = up.attribute(RESOURCE_MANAGER, "unread")
    assert unread is not None and up.parameters(unread) == () and up.source(unread) is None


def test_a_module_that_cannot_be_read_is_named(tree: Path) -> None:
    result = CliRunner().invoke(cli.main, ["doctor", "--json", "--source", str(tree)])
    report = json.loads(result.output)
    assert result.exit_code == 1
    assert report["overlay"]["version"] == "1.2.1" and report["overlay"]["release"]["variants"] == ["B"]
    assert "(by its number B)" in CliRunner().invoke(cli.main, ["doctor", "--source", str(tree)]).output
    (named,) = [each for each in report["problems"] if "py_executor cannot be read" in each]
    assert "py_executor.py:1" in named
    assert [each["name"] for each in report["overlay"]["buffers"]] == ["host_kv_cache_block_offsets"]


def test_a_tree_without_managers_needs_nothing_and_is_a_problem(tmp_path: Path) -> None:
    """Such as an incomplete checkout: every fix is not-applicable in it."""
    (tmp_path / "tensorrt_llm").mkdir()
    result = CliRunner().invoke(cli.main, ["doctor", "--json", "--source", str(tmp_path)])
    (problem,) = json.loads(result.output)["problems"]
    assert result.exit_code == 1
    assert "no probe says anything about it; usual causes: an incomplete checkout" in problem


def test_a_fix_whose_self_test_fails_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    command = ["doctor", "--json", "--source", str(tmp_path)]
    manager = tmp_path.joinpath(*RESOURCE_MANAGER.split(".")).with_suffix(".py")
    manager.parent.mkdir(parents=True)
    manager.write_text("")
    assert CliRunner().invoke(cli.main, command).exit_code == 0, "nothing in it needs a fix"

    def fail() -> None:
        raise AssertionError("it does not hold")

    monkeypatch.setattr(fixes, "ALL", (replace(fixes.ALL[0], self_test=fail),))
    result = CliRunner().invoke(cli.main, command)
    assert json.loads(result.output)["problems"] == [
        f"fix {fixes.ALL[0].id} fails its self-test: AssertionError: it does not hold"
    ]
    assert result.exit_code == 1


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no folder tensorrt_llm"):
        SourceTree(tmp_path)
    assert CliRunner().invoke(cli.main, ["doctor", "--source", str(tmp_path)]).exit_code == 2
