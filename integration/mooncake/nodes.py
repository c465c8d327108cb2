"""Mooncake's own parts on this machine: a master, nodes with memory, and a client for whoever tampers."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
MOONCAKE = ROOT / "build" / "mooncake"
SECONDS_MAX = 60.0
PORTS_TRIED = 3
# A node says that it is up, and stays until its standard input ends.
NODE = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
print("up" if code == 0 else f"code {code}", flush=True)
sys.stdin.read()
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        listeners = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]


def until(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    between: Callable[[], Any] | None = None,
    within_s: float = SECONDS_MAX,
) -> None:
    """Within a bound. `between` does what brings it on."""
    over, end = threading.Event(), monotonic() + within_s
    while not condition():
        assert monotonic() < end, what if isinstance(what, str) else what()
        if between is None:
            over.wait(0.005)
        else:
            between()


def stop(process: "subprocess.Popen[Any]") -> None:
    """The signal stops one thread, and that one the others: on a busy machine some answer meanwhile."""
    process.send_signal(signal.SIGSTOP)
    tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
    until(lambda: all(_state(task) == "T" for task in tasks), f"process {process.pid} does not stop")


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Master:
    def __init__(self) -> None:
        for _ in range(PORTS_TRIED):
            self.port, self.metrics_port = free_ports(2)
            self.address = f"127.0.0.1:{self.port}"
            self.process = self._started()
            if self.process.poll() is None:
                return
        raise AssertionError("the master ends at once, whatever its ports")

    def _started(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [str(MOONCAKE / "mooncake" / "mooncake_master"), f"--rpc_port={self.port}",
             f"--metrics_port={self.metrics_port}", "--client_ttl=3"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        # It ends at once where somebody else has taken a port meanwhile.
        until(lambda: self._listens() or process.poll() is not None, "the master does not listen")
        return process

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def come_back(self) -> None:
        self.process = self._started()


class Node:
    """A process with memory that the store may use."""

    def __init__(self, master: str, segment_bytes: int = 64 << 20) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, master, str(segment_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={"PYTHONPATH": str(MOONCAKE)}, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == "up\n", said

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def client_of(master: str) -> Any:
    """Mooncake's own client, in this process."""
    store = import_module("mooncake.store").MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    return store
