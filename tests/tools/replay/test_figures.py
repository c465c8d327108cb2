"""Passing over iterations in which nothing happens changes no figure."""

import json
from collections.abc import Sequence

import pytest

from trtllm_kvfix.tools.replay.engine import Replay
from trtllm_kvfix.tools.replay.host_tier import PolicyTier
from trtllm_kvfix.tools.replay.outcome import HostTierKind

from .figures import FIGURES, Case, cases, figures

EXPECTED = json.loads(FIGURES.read_text())
CASES = list(cases())


def test_every_case_has_its_figures() -> None:
    assert [case.name for case in CASES] == list(EXPECTED)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_replay_counts_what_it_counted_step_by_step(case: Case) -> None:
    assert figures(case.run()) == EXPECTED[case.name]


class Attentive(PolicyTier):
    """Sees every request in every iteration."""

    def __init__(self, slots: int, case: Case) -> None:
        shape, known = case.shape, Replay(case.workload, case.shape).known
        super().__init__(slots, shape.tokens_per_block, known, shape.host_admission.value, shape.blocks_remote)
        self.steps = 0

    def step(self, running: Sequence[tuple[int, int]]) -> None:  # type: ignore[override]  # as a protocol allows
        self.steps += 1
        super().step(running)


WITH_A_CONNECTOR = [case for case in CASES if case.shape.host_tier is HostTierKind.CONNECTOR and case.shape.blocks_host]


@pytest.mark.parametrize("case", WITH_A_CONNECTOR, ids=lambda case: case.name)
def test_a_tier_that_is_shown_everything_does_the_same(case: Case) -> None:
    tier = Attentive(case.shape.blocks_host, case)
    outcome = Replay(case.workload, case.shape, tier=tier).run()
    assert tier.steps == outcome.iterations
    assert figures(outcome) == EXPECTED[case.name]
