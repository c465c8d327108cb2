"""Agents of the remote-G2 connector (surface 7.3). The fork in C lets them listen; a later one does not.

nixl is imported where it is needed, so that the module loads without it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...._standin.variant import MANGLED, since


@dataclass
class SourceHandle:
    agent: Any
    agent_name: str
    pool_base_ptr: int
    pool_size_bytes: int


if MANGLED:

    def _agent(agent_name: str) -> Any:
        import nixl  # noqa: PLC0415

        make_config = vars(nixl)["nixl_agent_config"]
        return nixl.nixl_agent(agent_name, make_config(True, True, backends=["UCX"]), instantiate_all=False)

elif since("F"):

    def _agent(agent_name: str) -> Any:
        from nixl import nixl_agent, nixl_agent_config  # noqa: PLC0415

        config = nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=["UCX"])
        return nixl_agent(agent_name, config, instantiate_all=False)

else:

    def _agent(agent_name: str) -> Any:
        from nixl import nixl_agent, nixl_agent_config  # noqa: PLC0415

        config = nixl_agent_config(enable_prog_thread=True, enable_listen_thread=True, listen_port=0, backends=["UCX"])
        return nixl_agent(agent_name, config, instantiate_all=False)


def build_raw_nixl_source_agent(*, agent_name: str, pool_base_ptr: int, pool_size_bytes: int) -> SourceHandle | None:
    """Nothing but a line in the log says that it failed, and the tier is not shared then."""
    try:
        agent = _agent(agent_name)
    except Exception:
        logging.getLogger(__name__).exception("no agent for the source of the host tier")
        return None
    return SourceHandle(agent, agent_name, pool_base_ptr, pool_size_bytes)


class RawNixlRemoteG2Adapter:
    """Reads from the agents of other servers. Here a failure is the caller's."""

    def __init__(
        self,
        *,
        source_metadata_fetcher: Callable[..., Any],
        target_descriptor_resolver: Callable[..., Any],
        agent_name: str,
        primary_pool_base_ptr: int,
        primary_pool_size_bytes: int,
        device_id: int = 0,
    ) -> None:
        del source_metadata_fetcher, target_descriptor_resolver
        self.agent = _agent(agent_name)
        self.pool = (primary_pool_base_ptr, primary_pool_size_bytes, device_id)
