"""Managers that a program constructs itself, without the overlay: upstream's constructors and loops run on them."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from integration.upstream.native_crowds import ERAS
from integration.upstream.native_server import NativeServer
from integration.upstream.running import Result, apart
from integration.upstream.scenarios import SCENARIOS as ALL_SCENARIOS
from integration.upstream.scenarios import believes
from trtllm_kvfix import subclasses
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache
from trtllm_kvfix.staging import on_stream

TREES = Path(os.environ.get("UPSTREAM", ""))
pytestmark = pytest.mark.skipif(not (TREES / "S" / "tensorrt_llm").is_dir(), reason="UPSTREAM names no excerpts")
SCENARIOS = {each.name: each for each in ALL_SCENARIOS}


class OwnManagersServer(NativeServer):
    """A program that takes our classes where it would take upstream's."""

    def _manager(self) -> Any:
        self._give_back_constructor()
        own = self.resources
        self.resources = SimpleNamespace(  # type: ignore[assignment]  # what the rig constructs
            KVCacheManager=subclasses.KvfixKVCacheManager,
            ResourceManager=subclasses.KvfixResourceManager,
            ResourceManagerType=own.ResourceManagerType,
        )
        manager = self._v1_manager()
        assert isinstance(manager, own.KVCacheManager)
        assert isinstance(manager.impl, NativeKvCache)
        return manager

    def _executor(self) -> Any:
        executor = super()._executor()
        with pytest.raises(NotServed, match="its own executor"):
            executor.resource_manager.serve(SimpleNamespace(resource_manager=None))
        executor.resource_manager.serve(executor)
        return executor


def make_server(tree: Any, device: Any, shape: Any, connector: Any) -> OwnManagersServer:
    with on_stream(device.device, device.new_stream()):
        return OwnManagersServer(tree, device, shape, connector)


def run(era: str, name: str, **changes: Any) -> Result:
    return apart(TREES / era, era, replace(SCENARIOS[name], **changes), "off", make_server)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ["native-crowd-small", "native-crowd-host"])
def test_the_memory_holds_what_the_tokens_say(era: str, name: str) -> None:
    found = run(era, name)
    assert found.result == "right", found.remark


def answers_as_upstreams(server: Any) -> None:
    manager = server.manager
    assert type(manager).__mro__[1] is subclasses.KvfixKVCacheManager
    exact: Any = object.__new__(subclasses.KvfixKVCacheManager)
    vars(exact).update(vars(manager))
    assert exact.kv_block_budget_applies()
    upstreams: Any = subclasses.KvfixKVCacheManager.__base__
    derived = type("Derived", (upstreams,), {})
    other: Any = object.__new__(derived)
    vars(other).update(vars(manager))
    assert not other.kv_block_budget_applies(), "upstream goes by the exact type"


def test_what_goes_by_the_exact_type_answers_as_for_upstreams() -> None:
    found = run("D", "native-served", prepare=answers_as_upstreams)
    assert found.result == "right", found.remark


@pytest.mark.parametrize("is_told", [True, False])
def test_batches_are_fitted_when_the_executor_is_known(is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler takes 8 tokens to be cached that no longer are: upstream's batch has 24 of 16 tokens."""
    if not is_told:
        monkeypatch.setattr(OwnManagersServer, "_executor", NativeServer._executor)
    scenario = SCENARIOS["put-off-cancelled"]
    found = run("D", "native-served", shape=scenario.shape, arrivals=scenario.arrivals, prepare=believes({2: 8}))
    assert (found.result == "right") == is_told, found.remark
