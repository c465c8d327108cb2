"""Needs a CUDA GPU, torch and an extension with kernels.

The embedded engine on real streams, with CUDA graphs: token by token as the dense reference, which numpy computes; and
each fix off, in the order in which it matters.
"""

import pytest

from tests.engine.load import ENGINES, TIGHT, Played, usual_load, with_fix, without
from trtllm_kvfix.engine.config import HAZARDS, EngineConfig
from trtllm_kvfix.hazards.table import Scene
from trtllm_kvfix.tools.demo.scenes import SCENES, play

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

# The run has to end within a minute, and a late connector is what its parts are, each by itself.
LEFT_OUT = ("the connector and a late device", "a device that is late now and then")
ON_A_GPU = {name: config for name, config in ENGINES.items() if name not in LEFT_OUT}


@pytest.mark.parametrize("config", ON_A_GPU.values(), ids=ON_A_GPU)
def test_every_token_is_the_reference_s(config: EngineConfig) -> None:
    played = Played(usual_load(), config, "cuda")
    assert played.wrong == []
    assert played.counts.preemptions > 0 and played.blocks_loaded > 0 and played.stats.tokens_reused > 0


@pytest.mark.parametrize("fix", HAZARDS)
def test_each_fix_is_needed(fix: str) -> None:
    racy, fixed = Played(usual_load(), without(TIGHT, fix), "cuda"), Played(usual_load(), with_fix(TIGHT, fix), "cuda")
    assert racy.wrong, "a control that cannot bite shows nothing"
    assert fixed.wrong == []


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.fix)
def test_a_scene_of_the_demo_shows_what_it_should(scene: Scene) -> None:
    found = play(scene, "cuda", 0)
    assert found.shown
