"""Needs a CUDA GPU, torch and an extension with kernels.

The embedded engine on real streams, with CUDA graphs: token by token as the dense reference, which numpy computes; and
each fix off, in the order in which it matters.
"""

from dataclasses import replace
from functools import cache

import pytest

from tests.engine.load import TIGHT, Load, Played, with_fix, without
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig
from trtllm_kvfix.tools.demo.scenes import SCENES, Scene, play

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

REQUESTS = 150


@cache
def load() -> Load:
    return Load(REQUESTS)


ENGINES = {
    "native": TIGHT,
    "one by one": replace(TIGHT, manager="one-by-one"),
    "V2 tables": replace(TIGHT, layout="v2"),
    "the connector": replace(TIGHT, tier="connector"),
    "no graphs": replace(TIGHT, graphs=False),
    "no overlap": replace(TIGHT, overlap=False),
    "a late device": replace(TIGHT, late_every=1),
}


@pytest.mark.parametrize("config", ENGINES.values(), ids=ENGINES)
def test_every_token_is_the_reference_s(config: EngineConfig) -> None:
    played = Played(load(), config, "cuda")
    assert played.wrong == []
    assert played.counts.preemptions > 0 and played.blocks_loaded > 0 and played.stats.tokens_reused > 0


@pytest.mark.parametrize("fix", HAZARDS)
def test_each_fix_is_needed(fix: str) -> None:
    racy, fixed = Played(load(), without(TIGHT, fix), "cuda"), Played(load(), with_fix(TIGHT, fix), "cuda")
    assert racy.wrong, "a control that cannot bite shows nothing"
    assert fixed.wrong == []


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.fix)
def test_a_scene_of_the_demo_shows_what_it_should(scene: Scene) -> None:
    found = play(scene, "cuda", 0)
    assert found.shown
