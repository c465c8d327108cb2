"""With no overlay, a second agent on the host fails where the adapter lets them listen (hazard H6)."""

from importlib import import_module
from typing import Any

import pytest

from tests.standin.fixture import upstream

ADAPTER = "tensorrt_llm._torch.pyexecutor.connectors.remote_g2_raw_nixl_adapter"


POOL = {"pool_base_ptr": 0, "pool_size_bytes": 0}


def target(name: str) -> Any:
    return import_module(ADAPTER).RawNixlRemoteG2Adapter(
        source_metadata_fetcher=lambda *_: {},
        target_descriptor_resolver=lambda *_: [],
        agent_name=name,
        primary_pool_base_ptr=0,
        primary_pool_size_bytes=0,
    )


@pytest.mark.parametrize("variant", ["C", "mangled"])
def test_two_agents_collide(variant: str) -> None:
    with upstream(variant, nixl=True):
        assert import_module(ADAPTER).build_raw_nixl_source_agent(agent_name="first", **POOL) is not None
        with pytest.raises(RuntimeError, match="Failed to bind metadata listener socket"):
            target("second")
        assert import_module(ADAPTER).build_raw_nixl_source_agent(agent_name="third", **POOL) is None


def test_a_later_build_leaves_the_listener_off() -> None:
    with upstream("F", nixl=True):
        agents = [target(name).agent for name in ("first", "second")]
        assert not any(agent.config.enable_listen for agent in agents)


@pytest.mark.parametrize("variant", ["A", "B", "D"])
def test_other_builds_have_no_adapter(variant: str) -> None:
    with upstream(variant), pytest.raises(ModuleNotFoundError):
        import_module(ADAPTER)
