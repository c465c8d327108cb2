"""A porter, and who holds a segment, end with the engine, also where a child of the engine lives on."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fresh

ENDS_WITHIN_S = 30

UP = "HOLDER_UP"  # a pipe, in which the process that holds a segment says who it is

# Of Mooncake, as much as that process needs.
STORE = f"""
import os

class MooncakeDistributedStore:
    def setup(self, *_):
        with open(os.environ["{UP}"], "w") as up:
            up.write(str(os.getpid()))
        return 0
"""

ENGINE = f"""
import os, signal
from tests import fresh
from trtllm_kvfix.offload.remote.messages import Spec
from trtllm_kvfix.offload.remote.worker import PorterHandle

holder = PorterHandle(Spec(-1, -1, 64, 96, 0, 0, 1, "", "tcp", "127.0.0.1", 16 << 20), 10)
with open(os.environ["{UP}"]) as up:
    process_id = up.read()
child = os.fork()
if child:
    print(process_id, child, flush=True)
signal.pause()
"""


def test_a_child_of_the_engine_keeps_nothing_alive(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "store.py").write_text(STORE)
    os.mkfifo(tmp_path / "up")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environ = os.environ | {"PYTHONPATH": paths, UP: str(tmp_path / "up")}
    with subprocess.Popen([sys.executable, "-c", ENGINE], env=environ, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        holder, child = map(int, engine.stdout.readline().split())
        ended, alive = os.pidfd_open(holder), os.pidfd_open(child)
        engine.kill()
        try:
            assert select.select([ended], [], [], ENDS_WITHIN_S)[0] == [ended]
            assert select.select([alive], [], [], 0)[0] == [], "the child ended as well"
        finally:
            signal.pidfd_send_signal(alive, signal.SIGKILL)
            os.close(ended)
            os.close(alive)


@pytest.mark.parametrize("engine", [0, 1])
def test_a_porter_that_comes_after_its_engine_has_ended_ends(engine: int) -> None:
    program = f"from trtllm_kvfix.offload.remote import porter_process as p; p.end_with({engine}); print('goes on')"
    done = fresh.run([sys.executable, "-c", program])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
