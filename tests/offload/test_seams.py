"""Upstream's methods that the connector replaces may take more than it knows, and are refused where they need it."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.offload.patches import FINISH_PREFIX_LOADS, FREE_RESOURCES, GET_FINISHED, ending_replacements
from trtllm_kvfix.overlay import seam
from trtllm_kvfix.overlay.seam import SeamError

CONNECTOR = "tensorrt_llm._torch.pyexecutor.kv_cache_connector"


class Manager:
    """The parts of upstream's resource manager and connector manager, as a later release may have them."""

    def __init__(self) -> None:
        self.resource_managers: dict[str, Any] = {}
        self.worker = SimpleNamespace(requests_to_recompute={}, kept=SimpleNamespace(let_go=lambda _: None))

    def free_resources(self, request: Any, reason: str = "") -> tuple[Any, str]:
        return request, reason

    def get_finished(self, timeout_s: float = 0) -> float:
        return timeout_s

    def finish_prefix_loads(self, reservation_ids: list[int], *, ok: bool = False) -> tuple[list[int], bool]:
        return reservation_ids, ok


class Later:
    def free_resources(self, request: Any, reason: str) -> tuple[Any, str]:
        return request, reason

    def get_finished(self, timeout_s: float) -> float:
        return timeout_s

    def finish_prefix_loads(self, reservation_ids: list[int], *, ok: bool) -> tuple[list[int], bool]:
        return reservation_ids, ok


def planted(patch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    for name, owner in ((FREE_RESOURCES.module, "ResourceManager"), (CONNECTOR, "KvCacheConnectorManager")):
        module: Any = ModuleType(name)
        setattr(module, owner, type(owner, (), dict(vars(Manager)) | dict(vars(kind))))
        patch.setitem(sys.modules, name, module)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Upstream's resource manager and connector manager, with ours in them."""
    planted(monkeypatch, Manager)
    installed = [seam.install(each, "test") for each in ending_replacements(CONNECTOR)]
    assert len(installed) == 3
    return installed[0].owner(), installed[1].owner()


def test_what_upstream_passes_beside_it_arrives(replaced: tuple[Any, Any]) -> None:
    resources, connector = replaced
    assert resources.free_resources("r", reason="ended") == ("r", "ended")
    assert connector.get_finished(0.5) == 0.5
    assert connector.finish_prefix_loads([], ok=True) == ([], True)


@pytest.mark.parametrize("at", range(3))
def test_what_needs_more_than_we_know_is_refused_by_name(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, Later)
    replacement = ending_replacements(CONNECTOR)[at]
    path = (FREE_RESOURCES.path, GET_FINISHED, FINISH_PREFIX_LOADS)[at]
    with pytest.raises(SeamError, match=rf"{path} takes \(self, .*\), and the offload connector knows it with \(self"):
        seam.install(replacement, "test")
