"""Token by token against a dense reference: reuse, chunks, preemption, both tiers, and each fix off and on.

`long_run.py` does the same with many requests, and counts.
"""

from dataclasses import replace

import pytest

from tests.engine.load import ENGINES, TIGHT, Played, usual_load, with_fix, without
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
def test_every_token_is_the_reference_s(config: EngineConfig) -> None:
    played = Played(usual_load(), config)
    assert played.wrong == []
    # The events that the load is for have happened.
    assert played.counts.preemptions > 0
    assert played.blocks_loaded > 0 and played.blocks_evicted > 0
    assert played.stats.tokens_reused > 0 and played.stats.blocks_copied > 0


@pytest.mark.parametrize("fix", HAZARDS)
def test_each_fix_is_needed(fix: str) -> None:
    racy, fixed = Played(usual_load(), without(TIGHT, fix)), Played(usual_load(), with_fix(TIGHT, fix))
    assert racy.wrong, "a control that cannot bite shows nothing"
    assert fixed.wrong == []


def test_the_connector_s_order_is_needed() -> None:
    config = replace(TIGHT, tier="connector")
    assert Played(usual_load(), without(config, "transfer-order")).wrong, "a control that cannot bite shows nothing"
    assert Played(usual_load(), with_fix(config, "transfer-order")).wrong == []


def test_the_order_is_chosen_not_lucky() -> None:
    config = without(TIGHT, "staged-offsets-v1")
    first, second = Played(usual_load(), config), Played(usual_load(), config)
    assert first.wrong == second.wrong
    assert first.digest != 0 and first.steps == second.steps


def test_admission_in_a_batch_keeps_what_was_promised() -> None:
    native, one_by_one = Played(usual_load(), TIGHT), Played(usual_load(), replace(TIGHT, manager="one-by-one"))
    assert native.counts.reuse_lost == 0 < one_by_one.counts.reuse_lost
