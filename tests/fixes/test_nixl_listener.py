"""The raw NIXL adapter of the stand-in, with the stand-in's NIXL: its agents get no listener, others keep theirs."""

from importlib import import_module
from typing import Any

import pytest

from tests.fixes.applied import applied
from tests.fixes.faults import Fault
from tests.fixes.proofs import Broken, as_it_was
from tests.standin.fixture import upstream
from trtllm_kvfix.fixes.nixl_listener.fix import FIX
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.upstream import NIXL_ADAPTERS, Upstream


def adapter() -> Any:
    return import_module(NIXL_ADAPTERS[0])


def listens(agent_name: str) -> bool:
    """Whether the agent listens that the adapter makes for the source of a tier."""
    made = adapter().build_raw_nixl_source_agent(agent_name=agent_name, pool_base_ptr=0, pool_size_bytes=0)
    assert made is not None, "no agent was made"
    return bool(made.agent.config.enable_listen)


@pytest.mark.parametrize(
    ("variant", "state"), [("C", State.NEEDED), ("F", State.FIXED_UPSTREAM), ("B", State.NOT_APPLICABLE)]
)
def test_the_probe_reads_how_the_adapter_configures_its_agents(variant: str, state: State) -> None:
    with upstream(variant, nixl=True):
        import_module("nixl")
        if variant != "B":
            adapter()
        assert FIX.probe(Upstream()).state is state


def test_a_configuration_that_is_not_known_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with upstream("C", nixl=True):
        adapter()
        config = import_module("nixl").nixl_agent_config
        monkeypatch.setattr(config, "__init__", lambda self, plan: setattr(self, "plan", plan))
        assert FIX.probe(Upstream()).state is State.UNKNOWN
        monkeypatch.undo()


def test_a_configuration_that_does_not_take_what_the_adapter_passes_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with upstream("C", nixl=True):
        adapter()
        config = import_module("nixl").nixl_agent_config
        monkeypatch.setattr(config, "__init__", lambda self, enable_listen_thread: (self, enable_listen_thread))
        answer = FIX.probe(Upstream())
        assert answer.state is State.UNKNOWN and "with arguments that it takes" in answer.reason
        monkeypatch.undo()


def test_its_agents_do_without_a_listener_and_others_keep_theirs() -> None:
    with upstream("C", nixl=True):
        nixl = import_module("nixl")
        adapter()
        assert listens("first"), "the first agent of the host gets the port"
        with applied(["nixl-listener"]):
            assert not listens("second") and not listens("third")
            assert nixl.nixl_agent_config(enable_listen_thread=True).enable_listen
        with pytest.raises(AssertionError, match="no agent was made"):
            listens("fourth")
        nixl.forget_listeners()


# ---- for the tests of all fixes (proofs.py) ----

BROKEN = Broken("fixes.nixl_listener.fix.without_listener", as_it_was)


def configure(place: Fault) -> None:
    """Configures as the adapter does. If our code fails, upstream gets its arguments unchanged."""
    nixl = import_module("nixl")
    scope = {"__name__": NIXL_ADAPTERS[0], "nixl_agent_config": nixl.nixl_agent_config}
    made = [eval("nixl_agent_config(True, True, backends=['UCX'])", scope) for _ in range(4)]
    assert all(config.backends == ["UCX"] for config in made)
    assert made[0].enable_listen, f"{place} was never come by"


PLACES = (Fault("fixes.nixl_listener.fix._switched_off", "C", configure, nixl=True),)
