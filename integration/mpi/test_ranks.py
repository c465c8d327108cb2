"""The fixes in the ranks of real MPI processes, and the start that is refused when they differ.

Needs Open MPI and mpi4py (Debian: openmpi-bin, libopenmpi-dev; pip: mpi4py).
"""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from integration.mpi import session
from tests.overlay import upstream_double

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None or find_spec("mpi4py") is None, reason="needs Open MPI and mpi4py"
)

PYTHON = sys.executable
ON = ["ours", "upstream", "ours"]
OFF = ["upstream", "upstream"]
# More ranks than cores, as root in a container: neither matters here.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
TIMEOUT_S = 120
ANOTHER_UPSTREAM = "sys.path.insert(0, os.path.abspath('odd'))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    upstream_double.write(tmp_path)
    session.write(tmp_path)
    return tmp_path


def start(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=TIMEOUT_S,
        env=upstream_double.environment(folder, **OPEN_MPI, **variables),
    )


def results(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(*command: str) -> tuple[str, ...]:
    return (PYTHON, "-m", "trtllm_kvfix", "run", "--", *command)


def another_upstream(folder: Path) -> None:
    """The same package with one changed line in what a fix replaces."""
    shutil.copytree(folder / "tensorrt_llm", folder / "odd" / "tensorrt_llm")
    file = folder / "odd/tensorrt_llm/_torch/pyexecutor/resource_manager.py"
    file.write_text(file.read_text().replace('return ["upstream"]', 'return ["upstream", "and more"]'))


@pytest.mark.parametrize("workers", [2, 4])
def test_spawned_workers_have_the_fixes_and_attest(folder: Path, workers: int) -> None:
    """`enable()` comes after rank 0 has started, so workers get its settings through upstream's filter only."""
    done = start(folder, PYTHON, "main.py", str(workers), "enable")
    found = results(done)
    assert [each["rank"] for each in found] == list(range(workers))
    assert len({each["pid"] for each in found}) == workers
    for each in found:
        assert each["record"] == ["ours", "upstream", "upstream"]
        assert each["fixes"] == {"token-budget": "applied", "nixl-listener": "off"}
        assert each["started"] == "started"
        assert each["attested"] == list(range(workers))
    for rank in range(workers):
        assert f"rank {rank} of {workers}, variant " in done.stderr


def test_settings_do_not_need_upstream_to_send_them(folder: Path) -> None:
    """A program's own pool sends nothing; the initializer brings the settings itself."""
    found = results(start(folder, PYTHON, "main.py", "2", "enable", "bare"))
    assert [each["fixes"] for each in found] == [{"token-budget": "applied", "nixl-listener": "off"}] * 2


def test_workers_below_run_have_them_too(folder: Path) -> None:
    found = results(start(folder, *run(PYTHON, "main.py", "2")))
    assert [each["record"] for each in found] == [ON, ON]
    assert len({each["variables"]["TRTLLM_KVFIX_JOB"] for each in found}) == 1


def test_without_the_hook_workers_have_nothing(folder: Path) -> None:
    found = results(start(folder, PYTHON, "main.py", "2"))
    assert [(each["record"], each["fixes"], each["attested"]) for each in found] == [(OFF, {}, [])] * 2


@pytest.mark.parametrize("workers", [2, 4])
def test_worker_with_another_seam_stops_the_start_of_all(folder: Path, workers: int) -> None:
    another_upstream(folder)
    odd = {"TRTLLM_TEST_ODD_RANK": "1", "TRTLLM_TEST_ODD_CODE": ANOTHER_UPSTREAM}
    found = results(start(folder, *run(PYTHON, "main.py", str(workers)), **odd))
    for each in found:
        assert each["started"].startswith(
            "RanksDiffer: rank 1 differs from rank 0: seam tensorrt_llm._torch.pyexecutor."
        )
        assert "KVCacheManager.prepare_resources source:" in each["started"]


def test_worker_with_other_settings_stops_the_start(folder: Path) -> None:
    code = "import trtllm_kvfix; trtllm_kvfix.enable(fixes={'token-budget': 'off'})"
    odd = {"TRTLLM_TEST_ODD_RANK": "1", "TRTLLM_TEST_ODD_CODE": code}
    found = results(start(folder, *run("mpirun", "-n", "2", PYTHON, "main.py", "comm"), **odd))
    assert {each["started"].partition(";")[0] for each in found} == {
        "RanksDiffer: rank 1 differs from rank 0: setting of token-budget auto / off"
    }


def test_ranks_of_mpirun_have_the_fixes_rank_0_in_a_thread(folder: Path) -> None:
    found = results(start(folder, *run("mpirun", "-n", "2", PYTHON, "main.py", "comm")))
    assert [(each["record"], each["started"], each["attested"]) for each in found] == [(ON, "started", [0, 1])] * 2


def test_rank_without_the_hook_is_named_instead_of_waited_for(folder: Path) -> None:
    odd = {
        "TRTLLM_TEST_ODD_RANK": "1",
        "TRTLLM_TEST_ODD_CODE": "from trtllm_kvfix import process; process.begin = lambda: None",
        "TRTLLM_KVFIX_AGREEMENT_TIMEOUT_S": "2.0",
    }
    found = results(start(folder, *run("mpirun", "-n", "2", PYTHON, "main.py", "comm"), **odd))
    assert found[0]["started"].startswith("RanksDiffer: rank 1 did not report which fixes run there within 2 s")
    assert (found[1]["started"], found[1]["record"]) == ("started", OFF)


def test_worker_that_cannot_have_the_fixes_breaks_the_pool_and_says_why(folder: Path) -> None:
    odd = {"TRTLLM_TEST_ODD_RANK": "1", "TRTLLM_TEST_ODD_CODE": "os.environ['TRTLLM_KVFIX_FORCES'] = '1'"}
    code = "import os\nimport trtllm_kvfix\ntrtllm_kvfix.enable()\n"
    (folder / "late.py").write_text(code)
    done = start(folder, PYTHON, "main.py", "2", "enable", **odd)
    assert done.returncode != 0
    assert "did you mean TRTLLM_KVFIX_FORCE?" in done.stderr
    assert "initializer failed" in done.stderr
