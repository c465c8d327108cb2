"""Agents that share a port with those of the host's other servers (H6)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from trtllm_kvfix.hazards.ground import Ground, NothingToShow, Unavailable
from trtllm_kvfix.hazards.small import accepted
from trtllm_kvfix.hazards.table import Scenario
from trtllm_kvfix.overlay.upstream import NIXL, NIXL_ADAPTERS, Upstream

SOURCE, TARGET = "build_raw_nixl_source_agent", "RawNixlRemoteG2Adapter"
# The arguments of both calls; no memory is registered.
GIVEN: dict[str, Any] = {
    "agent_name": "trtllm-kvfix selfcheck",
    "pool_base_ptr": 0,
    "pool_size_bytes": 0,
    "primary_pool_base_ptr": 0,
    "primary_pool_size_bytes": 0,
    "source_metadata_fetcher": lambda *_: {},
    "target_descriptor_resolver": lambda *_: [],
}


class _Configured(Exception):
    """An agent would be made now: it would open devices of the network, and a port."""


def listens_nowhere(ground: Ground, up: Upstream) -> str | None:
    """Both kinds of agents are configured by upstream's adapter, with NIXL's own class, and not made."""
    del ground  # nothing of it runs on a GPU
    adapter = up.first(*NIXL_ADAPTERS)
    if adapter is None:
        raise NothingToShow("there is no raw NIXL adapter")
    nixl: Any = up.module(NIXL)
    if nixl is None:
        raise NothingToShow("NIXL is not installed")
    listening = []
    for name in (SOURCE, TARGET):
        make = getattr(adapter, name, None)
        if make is not None:
            with _recorded(nixl) as configurations, suppress(_Configured):
                make(**accepted(make, GIVEN))
            if not configurations:
                raise Unavailable(f"{name} made no configuration of an agent")
            listening += [name for each in configurations if _listens(each)]
    return f"agents of {' and '.join(listening)} listen on one port of the host" if listening else None


def _listens(configuration: Any) -> bool:
    listens = getattr(configuration, "enable_listen", None)
    if listens is None:
        raise Unavailable("this NIXL's configuration does not show whether an agent listens")
    return bool(listens)


@contextmanager
def _recorded(nixl: Any) -> Iterator[list[Any]]:
    """The configurations with which agents would be made. The adapter logs that none is, which would be misread."""
    configurations: list[Any] = []
    original: Callable[..., Any] = nixl.nixl_agent

    def nixl_agent(agent_name: str, nixl_conf: Any = None, *_: Any, **__: Any) -> Any:
        configurations.append(nixl_conf)
        raise _Configured(agent_name)

    level = logging.root.manager.disable
    nixl.nixl_agent = nixl_agent
    logging.disable(logging.ERROR)
    try:
        yield configurations
    finally:
        nixl.nixl_agent = original
        logging.disable(level)


SCENARIOS = (Scenario("listener", "nixl-listener", listens_nowhere),)
