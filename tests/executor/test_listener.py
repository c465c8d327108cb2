"""With no overlay, a second agent on the host fails where the adapter lets them listen (hazard H6)."""

from importlib import import_module

import pytest

from tests.standin.fixture import upstream

ADAPTER = "tensorrt_llm._torch.pyexecutor.connectors.remote_g2_raw_nixl_adapter"


@pytest.mark.parametrize("variant", ["C", "mangled"])
def test_two_agents_collide(variant: str) -> None:
    with upstream(variant, nixl=True):
        adapter = import_module(ADAPTER)
        adapter.RawNixlRemoteG2Adapter("first")
        with pytest.raises(RuntimeError, match="Failed to bind metadata listener socket"):
            adapter.RawNixlRemoteG2Adapter("second")


def test_a_later_build_leaves_the_listener_off() -> None:
    with upstream("F", nixl=True):
        adapter = import_module(ADAPTER)
        agents = [adapter.RawNixlRemoteG2Adapter(name).agent for name in ("first", "second")]
        assert not any(agent.config.enable_listen_thread for agent in agents)


@pytest.mark.parametrize("variant", ["A", "B", "D"])
def test_other_builds_have_no_adapter(variant: str) -> None:
    with upstream(variant), pytest.raises(ModuleNotFoundError):
        import_module(ADAPTER)
