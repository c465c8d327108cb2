"""The stand-in's server of each build gets new weights, as a training loop gives them to a Ray worker."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload.ledger import Weights
from trtllm_kvfix.offload.patches import RLHF, noting_replacements
from trtllm_kvfix.overlay.upstream import PY_EXECUTOR

from .stand_in import OffloadServer, offloading
from .test_kept_blocks import DEVICE_BLOCKS, FILLS_THE_DEVICE, HOST_BLOCKS, PROMPT

WITH_REFIT = [variant for variant in VARIANTS if variant != "A"]


def extension(server: OffloadServer) -> Any:
    made = import_module(RLHF).WorkerExtension()
    made.engine = server.executor
    return made


def updated(server: OffloadServer) -> None:
    refit = extension(server)
    refit.update_weights({"gpu": []})
    refit.update_weights()


def updated_by_an_extension_that_only_resets(server: OffloadServer) -> None:
    with server.executor.control_action():
        server.contents.weights += 1
    extension(server).reset_prefix_cache()


def updated_while_it_serves_in_between(server: OffloadServer) -> None:
    """Nothing ends the update. Its first half counts all the same."""
    extension(server).update_weights({"gpu": []})
    server.executor.kv_cache_manager.reset_reuse_state()


CHANGES = [updated, updated_by_an_extension_that_only_resets, updated_while_it_serves_in_between]


def served(variant: str, change: Any) -> tuple[float, set[int]]:
    """Blocks that were loaded for a prompt behind the change, and requests that read what they must not."""
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        server.run([server.request(1, PROMPT, 1)])
        server.run([server.request(2, FILLS_THE_DEVICE, 1)])
        before = counters.offload_loaded_blocks.value
        change(server)
        server.run([server.request(3, PROMPT, 1)])
        server.close()
        loaded = counters.offload_loaded_blocks.value - before
        server.contents.judge()
        return loaded, set(server.contents.corrupt)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("variant", WITH_REFIT)
def test_new_weights_find_nothing_of_the_old(variant: str, change: Any) -> None:
    assert served(variant, change) == (0, set())


@pytest.mark.parametrize("change", CHANGES)
def test_they_do_where_nobody_takes_a_note(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(Weights, "_note", lambda *_: None)
    assert served("B", change) == (2, {3})


def test_without_a_change_the_blocks_come_back() -> None:
    """The control."""
    assert served("B", lambda _: None) == (2, set())


def test_a_build_without_the_calls_serves_and_says_what_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    assert served("A", lambda _: None) == (2, set())
    assert "PyExecutor.reset_prefix_cache was not found: the host tier does not learn of weights" in caplog.text


class Executor:
    def reset_prefix_cache(self) -> None: ...


@pytest.mark.parametrize("lacks", ["", "update_weights", "reset_prefix_cache"])
def test_a_refit_of_which_a_part_would_go_unnoticed_is_named(
    lacks: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    methods = {"update_weights", "reset_prefix_cache"} - {lacks}
    modules: dict[str, Any] = {PY_EXECUTOR: ModuleType(PY_EXECUTOR), RLHF: ModuleType(RLHF)}
    modules[PY_EXECUTOR].PyExecutor = Executor
    modules[RLHF].WorkerExtension = type("WorkerExtension", (), {name: lambda *_: None for name in methods})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert {each.seam.path for each in noting_replacements()} == {
        "PyExecutor.reset_prefix_cache", *(f"WorkerExtension.{name}" for name in methods)
    }  # fmt: skip
    said = f"{RLHF}:WorkerExtension.{lacks} was not found"
    assert [said in record.getMessage() for record in caplog.records] == [True] * bool(lacks)
