"""H6 without TensorRT-LLM: agents are configured by the adapter, whose listener would take the port, and by others."""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from trtllm_kvfix.hazards.simulated import require

Around: TypeAlias = Callable[[Collection[str], Callable[..., None]], Callable[..., None]]
ADAPTER = "adapter"


def self_test(without_listener: Around) -> None:
    """`without_listener` gets the names of the adapter's modules, and the constructor of a configuration."""

    class Config:
        def __init__(self, enable_prog_thread: bool = True, enable_listen_thread: bool = False) -> None:
            self.threads = (enable_prog_thread, enable_listen_thread)

    Config.__init__ = without_listener([ADAPTER], Config.__init__)  # type: ignore[method-assign]
    for caller, positional, expected in (
        (ADAPTER, (True, True), (True, False)),
        (ADAPTER, (False,), (False, False)),
        ("elsewhere", (True, True), (True, True)),
    ):
        scope: dict[str, Any] = {"__name__": caller, "Config": Config, "positional": positional}
        threads = eval("Config(*positional).threads", scope)
        require(threads == expected, f"called from {caller} with {positional} the threads are {threads}")
