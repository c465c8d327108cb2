"""Core and reference model over long walks. A failure names its seed; `Walk(seed).run(STEPS)` replays it."""

import pytest
from hypothesis import settings

from .walk import Walk

STEPS = 150
WALKS = 20
BATCHES = 100 if settings.get_current_profile_name() == "fuzz" else 2  # 40 walks; `make ci-long` takes 2,000


@pytest.mark.parametrize("batch", range(BATCHES))
def test_core_and_model_agree_at_every_step(batch: int) -> None:
    reused = 0
    for seed in range(batch * WALKS, (batch + 1) * WALKS):
        walk = Walk(seed)
        try:
            walk.run(STEPS)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        reused += walk.model.state.total.get("blocks_reused", 0)
    assert reused > 10 * WALKS, "walks that reuse nothing show nothing"
