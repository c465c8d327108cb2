"""Agents of the remote-G2 connector (surface 7.3). The fork in C lets them listen; a later one does not.

nixl is imported where it is needed, so that the module loads without it.
"""

from typing import Any

from ...._standin.variant import MANGLED, since

if MANGLED:

    def build_raw_nixl_source_agent(agent_name: str, backends: tuple[str, ...] = ("UCX",)) -> Any:
        import nixl  # noqa: PLC0415

        make_config = vars(nixl)["nixl_agent_config"]
        return nixl.nixl_agent(agent_name, make_config(True, True, backends=list(backends)))

elif since("F"):

    def build_raw_nixl_source_agent(agent_name: str, backends: tuple[str, ...] = ("UCX",)) -> Any:
        from nixl import nixl_agent, nixl_agent_config  # noqa: PLC0415

        config = nixl_agent_config(enable_prog_thread=True, enable_listen_thread=False, backends=list(backends))
        return nixl_agent(agent_name, config)

else:

    def build_raw_nixl_source_agent(agent_name: str, backends: tuple[str, ...] = ("UCX",)) -> Any:
        from nixl import nixl_agent, nixl_agent_config  # noqa: PLC0415

        config = nixl_agent_config(enable_prog_thread=True, enable_listen_thread=True, backends=list(backends))
        return nixl_agent(agent_name, config)


class RawNixlRemoteG2Adapter:
    def __init__(self, agent_name: str, backends: tuple[str, ...] = ("UCX",)) -> None:
        self.agent = build_raw_nixl_source_agent(agent_name, backends)
