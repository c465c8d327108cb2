"""A stand-in for nixl: agents of one host that listen collide on the port (hazard H6)."""

from collections.abc import Sequence
from dataclasses import dataclass

METADATA_PORT = 8888
_listening: set[int] = set()


@dataclass
class nixl_agent_config:  # noqa: N801  nixl's name
    enable_prog_thread: bool = True
    enable_listen_thread: bool = False
    listen_port: int = 0
    num_threads: int = 0
    capture_telemetry: bool = False
    backends: Sequence[str] = ("UCX",)


class nixl_agent:  # noqa: N801
    def __init__(self, agent_name: str, nixl_conf: nixl_agent_config | None = None) -> None:
        self.name = agent_name
        self.config = nixl_agent_config() if nixl_conf is None else nixl_conf
        if self.config.enable_listen_thread:
            port = self.config.listen_port or METADATA_PORT
            if port in _listening:
                raise RuntimeError(f"Failed to bind metadata listener socket, port {port}")
            _listening.add(port)


def forget_listeners() -> None:
    """As if the processes that listened had ended."""
    _listening.clear()
