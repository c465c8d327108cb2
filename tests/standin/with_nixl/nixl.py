"""A stand-in for nixl: agents of one host that listen collide on the port (hazard H6)."""

from collections.abc import Sequence

METADATA_PORT = 8888
_listening: set[int] = set()


class nixl_agent_config:  # noqa: N801  nixl's name
    """The attributes have other names than the arguments, as nixl's have."""

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = 0,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: Sequence[str] = ("UCX",),
    ) -> None:
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.backends = backends


class nixl_agent:  # noqa: N801
    def __init__(
        self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False
    ) -> None:
        del instantiate_all
        self.name = agent_name
        self.config = nixl_agent_config() if nixl_conf is None else nixl_conf
        if self.config.enable_listen:
            port = self.config.port or METADATA_PORT
            if port in _listening:
                raise RuntimeError(f"Failed to bind metadata listener socket, port {port}")
            _listening.add(port)


def forget_listeners() -> None:
    """Acts as if the processes that listened had ended."""
    _listening.clear()
