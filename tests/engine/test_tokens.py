"""Token by token against a dense reference: reuse, chunks, preemption, both tiers, and each fix off and on.

`long_run.py` does the same with many requests, and counts.
"""

from dataclasses import replace
from functools import cache

import pytest

from tests.engine.load import TIGHT, Load, Played, with_fix, without
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig

REQUESTS = 150


@cache
def load() -> Load:
    return Load(REQUESTS)


ENGINES = {
    "native": TIGHT,
    "one by one": replace(TIGHT, manager="one-by-one"),
    "V2 tables": replace(TIGHT, layout="v2"),
    "no overlap": replace(TIGHT, overlap=False),
    "no graphs": replace(TIGHT, graphs=False),
    "the connector": replace(TIGHT, tier="connector"),
    "the connector and a late device": replace(TIGHT, tier="connector", late_every=1),
    "a late device": replace(TIGHT, late_every=1),
    "a device that is late now and then": replace(TIGHT, late_every=3),
}


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
def test_every_token_is_the_reference_s(config: EngineConfig) -> None:
    played = Played(load(), config)
    assert played.wrong == []
    # What the load is for has happened.
    assert played.counts.preemptions > 0
    assert played.blocks_loaded > 0 and played.blocks_evicted > 0
    assert played.stats.tokens_reused > 0 and played.stats.blocks_copied > 0


@pytest.mark.parametrize("fix", HAZARDS)
def test_each_fix_is_needed(fix: str) -> None:
    racy, fixed = Played(load(), without(TIGHT, fix)), Played(load(), with_fix(TIGHT, fix))
    assert racy.wrong, "a control that cannot bite shows nothing"
    assert fixed.wrong == []


def test_the_connector_s_order_is_needed() -> None:
    config = replace(TIGHT, tier="connector")
    assert Played(load(), without(config, "transfer-order")).wrong, "a control that cannot bite shows nothing"
    assert Played(load(), with_fix(config, "transfer-order")).wrong == []


def test_the_order_is_chosen_not_lucky() -> None:
    config = without(TIGHT, "staged-offsets-v1")
    first, second = Played(load(), config), Played(load(), config)
    assert first.wrong == second.wrong
    assert first.digest != 0 and first.steps == second.steps


def test_admission_in_a_batch_keeps_what_was_promised() -> None:
    native, one_by_one = Played(load(), TIGHT), Played(load(), replace(TIGHT, manager="one-by-one"))
    assert native.counts.reuse_lost == 0 < one_by_one.counts.reuse_lost
