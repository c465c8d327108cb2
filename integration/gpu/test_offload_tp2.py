"""Tensor parallel 2: two processes, each with a GPU of its own and its half of every block. Needs two CUDA devices.

tests/offload/test_rank_processes.py runs the same scenarios on simulated devices.
"""

from functools import partial

import pytest

from tests.offload.rank_checks import CHECKS, Reports, served_by_all_alike
from tests.offload.rank_processes import run_ranks
from tests.offload.rank_scenarios import SCENARIOS, traffic
from trtllm_kvfix.native import DeviceError, open_device

try:
    open_device("cuda:1")
    WHY_NOT = ""
except DeviceError as error:
    WHY_NOT = str(error)

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no second CUDA device: {WHY_NOT}")
REQUESTS = 2000
# A copy that faults takes the whole context of a GPU with it; one that is refused leaves it as it was.
ON_A_GPU = {name: check for name, check in CHECKS.items() if "fails" not in name} | {
    "traffic": partial(served_by_all_alike, requests=REQUESTS)
}


@pytest.fixture(scope="module")
def reports() -> dict[str, Reports]:
    parts = [SCENARIOS[name] if name != "traffic" else partial(traffic, requests=REQUESTS) for name in ON_A_GPU]
    found: dict[str, Reports] = dict(zip(ON_A_GPU, run_ranks("cuda", 2, parts), strict=True))
    for rank, report in enumerate(found["traffic"]):
        print(f"rank {rank}: {report}")  # noqa: T201  for whoever writes down what was seen
    return found


@pytest.mark.parametrize("scenario", ON_A_GPU)
def test_ranks_agree(scenario: str, reports: dict[str, Reports]) -> None:
    ON_A_GPU[scenario](reports[scenario])
