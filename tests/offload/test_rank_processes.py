"""The ranks of one model as processes, each with a simulated device of its own."""

import pytest

from .rank_checks import CHECKS, Reports
from .rank_processes import run_ranks
from .rank_scenarios import SCENARIOS

RANKS = 2


@pytest.fixture(scope="module")
def reports() -> dict[str, Reports]:
    return dict(zip(CHECKS, run_ranks("cpu", RANKS, [SCENARIOS[name] for name in CHECKS]), strict=True))


@pytest.mark.parametrize("scenario", CHECKS)
def test_ranks_agree(scenario: str, reports: dict[str, Reports]) -> None:
    CHECKS[scenario](reports[scenario])
