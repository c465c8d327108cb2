"""H6: two NIXL agents of one host share a metadata listener's port.

Shows:     agents are configured with enable_listen_thread=True and no port, as the raw NIXL adapter of the host tier
           does. The first one listens on the default port; the second, in another process, cannot.
Control:   two agents without a listener, which both come up.
Needs:     NIXL (pip install nixl), no torch, no GPU, no TensorRT-LLM. Takes ten seconds, or 60 where NIXL hangs.
"""

import subprocess
import sys
from importlib.util import find_spec

# An agent that says that it is up, and stays until its standard input ends.
AGENT = """
import sys
from nixl import nixl_agent, nixl_agent_config
listens = sys.argv[2] == "listening"
agent = nixl_agent(sys.argv[1], nixl_agent_config(enable_prog_thread=True, enable_listen_thread=listens, backends=[]))
print("up", flush=True)
sys.stdin.read()
"""
LIMIT_S = 60


def start(name: str, how: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", AGENT, name, how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def comes_up(agent: "subprocess.Popen[str]") -> bool:
    assert agent.stdout is not None
    return "up\n" in agent.stdout


def second_comes_up(how: str) -> bool:
    """Whether a second agent comes up beside a first one."""
    first = start("first", how)
    try:
        if not comes_up(first):
            print(f"the first agent did not come up: {first.communicate()[1].strip()[-300:]}")
            sys.exit(2)
        second = start("second", how)
        try:
            said, error = second.communicate(timeout=LIMIT_S)  # its standard input ends, and so does it
        except subprocess.TimeoutExpired:
            second.kill()
            said, error = second.communicate()[0], "it hangs"
        if "up" not in said:
            print(f"the second agent did not come up: {error.strip()[-300:]}")
        return "up" in said
    finally:
        first.communicate()


if find_spec("nixl") is None:
    print("NIXL is not installed")
    sys.exit(2)
control, found = second_comes_up("silent"), second_comes_up("listening")
print(f"the second agent came up: {control} without listeners, {found} with them")
sys.exit(2 if not control else int(not found))
