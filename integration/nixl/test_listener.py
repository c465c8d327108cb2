"""Two agents on one host with NIXL itself: they collide on the listener's port without the fix, and not with it.

Needs NIXL, without torch: pip install --no-deps --target build/nixl nixl nixl-cu12
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.overlay import upstream_double

NIXL = upstream_double.ROOT / "build" / "nixl"
pytestmark = pytest.mark.skipif(
    not NIXL.is_dir(), reason="needs NIXL: pip install --no-deps --target build/nixl nixl nixl-cu12"
)

ADAPTER = "tensorrt_llm._torch.pyexecutor.connectors.remote_g2_raw_nixl_adapter"
# As upstream's adapter does it: NIXL is imported when an agent is wanted, and the port is NIXL's own default.
ADAPTER_SOURCE = """
def build_raw_nixl_source_agent(name):
    from nixl import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(enable_prog_thread=True, enable_listen_thread=True, backends=[]))
"""
# An agent that says that it is up, and stays until its standard input ends.
AGENT = f"""
import sys
from {ADAPTER} import build_raw_nixl_source_agent
agent = build_raw_nixl_source_agent(sys.argv[1])
print("up", flush=True)
sys.stdin.read()
"""
# Somebody else's agent in the same process, which wants its listener.
OTHER = """
from nixl import nixl_agent_config
import trtllm_kvfix
print(nixl_agent_config(enable_listen_thread=True).enable_listen)
print(trtllm_kvfix.status()["fixes"]["nixl-listener"]["word"])
"""
WAIT_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    upstream_double.write(tmp_path)
    file = tmp_path / (ADAPTER.replace(".", "/") + ".py")
    file.parent.mkdir()
    (file.parent / "__init__.py").touch()
    file.write_text(ADAPTER_SOURCE)
    return tmp_path


class Agents:
    """Processes with an agent each; all are ended together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *launcher: str) -> tuple[bool, str]:
        """Whether it came up, and what it said to stderr when it did not."""
        environ = upstream_double.environment(self.folder)
        environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(NIXL)])
        process = subprocess.Popen(
            [
                sys.executable,
                *launcher,
                *([sys.executable] if launcher else []),
                "-c",
                AGENT,
                f"agent{len(self.processes)}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=environ,
        )
        self.processes.append(process)
        assert process.stdout is not None
        for line in process.stdout:  # NIXL writes its log there, too
            if line == "up\n":
                return True, ""
        return False, process.communicate(timeout=WAIT_S)[1]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.communicate("", timeout=WAIT_S)


@pytest.fixture
def agents(folder: Path) -> Iterator[Agents]:
    made = Agents(folder)
    yield made
    made.end()


def test_second_agent_fails_without_the_fix(agents: Agents) -> None:
    assert agents.start() == (True, "")
    came_up, error = agents.start()
    assert not came_up
    assert "bind" in error and "listener" in error, error


def test_both_are_up_with_the_fix(agents: Agents) -> None:
    run = ("-m", "trtllm_kvfix", "run", "--")
    assert agents.start(*run) == (True, "")
    assert agents.start(*run) == (True, "")


def test_other_agents_keep_their_listener(folder: Path) -> None:
    environ = upstream_double.environment(folder)
    code = f"import trtllm_kvfix; trtllm_kvfix.enable()\nimport {ADAPTER}\n{OTHER}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environ | {"PYTHONPATH": os.pathsep.join([environ["PYTHONPATH"], str(NIXL)])},
    )
    assert done.stdout.splitlines()[-2:] == ["True", "applied"], done.stderr
