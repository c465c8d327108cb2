"""The fixes in Ray actors, to which TensorRT-LLM hands a full copy of the environment.

Needs Ray: pip install --target build/ray ray
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.overlay.upstream_double import ROOT, environment
from tests.standin.fixture import STANDIN

RAY = ROOT / "build" / "ray"
pytestmark = pytest.mark.skipif(not RAY.is_dir(), reason="needs Ray: pip install --target build/ray ray")
TIMEOUT_S = 180

DRIVER = """
import json, os, sys
import ray

class Worker:
    def words(self, enable):
        import trtllm_kvfix
        if enable:
            trtllm_kvfix.enable(fixes={"token-budget": "off"})
        import tensorrt_llm._torch.pyexecutor.py_executor_creator
        return os.getpid(), {fix_id: each["word"] for fix_id, each in trtllm_kvfix.status()["fixes"].items()}

ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
actors = [
    ray.remote(Worker).options(num_cpus=1, runtime_env={"env_vars": dict(os.environ)}).remote() for _ in range(2)
]
print(json.dumps(ray.get([each.words.remote("enable" in sys.argv) for each in actors])))
ray.shutdown()
"""


def drive(folder: Path, *launcher: str, arguments: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Reports what became of each fix in two actors."""
    environ = environment(STANDIN, STANDIN_VARIANT="B", RAY_USAGE_STATS_ENABLED="0")
    environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], str(RAY)])
    environ["TRTLLM_KVFIX_RUNTIME_DIR"] = str(folder / "run")
    done = subprocess.run(
        [*launcher, sys.executable, "-c", DRIVER, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environ,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    (first, words), (second, others) = json.loads(done.stdout.splitlines()[-1])
    assert first != second
    return [words, others]


def test_actors_below_run_have_the_fixes(tmp_path: Path) -> None:
    for words in drive(tmp_path, sys.executable, "-m", "trtllm_kvfix", "run", "--fix", "input-copy-fence=off", "--"):
        assert (words["batched-admission"], words["input-copy-fence"]) == ("applied", "off")


def test_an_actor_can_enable_them_itself(tmp_path: Path) -> None:
    for words in drive(tmp_path, arguments=("enable",)):
        assert (words["token-budget"], words["input-copy-fence"]) == ("off", "applied")


def test_other_actors_have_none(tmp_path: Path) -> None:
    assert drive(tmp_path) == [{}, {}]
