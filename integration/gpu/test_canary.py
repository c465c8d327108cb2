"""Needs a CUDA GPU and torch.

The canary beside the embedded engine on real streams: silent with all fixes, and quick without one. A kernel
digests what it looks at, behind kernels and replays of CUDA graphs. And beside the stand-in's V1 manager, whose blocks
are torch's tensors.
"""

from dataclasses import replace

import pytest

from tests.engine.load import ENGINES, TIGHT, usual_load, without
from tests.engine.test_canary import HEARD, SPEAKS_WITHIN, Watched
from tests.torture.test_v1_watched import is_silent, planted
from tests.torture.v1_watched import watched_v1
from trtllm_kvfix.engine.config import EngineConfig

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

ON_A_GPU = ("native", "V2 tables", "no graphs", "the connector", "a late device")


@pytest.mark.parametrize("config", [ENGINES[name] for name in ON_A_GPU], ids=ON_A_GPU)
def test_it_is_silent_where_all_is_right(config: EngineConfig) -> None:
    watched = Watched(usual_load(), replace(config, canary=8), cancels=7, device="cuda")
    assert watched.wrong == []
    assert watched.report.state == "observes" and watched.report.counts == {}
    assert watched.report.blocks_taken > 500 and watched.report.blocks_compared["live"] > 500


@pytest.mark.parametrize("blocks_per_step", [8, 64])
@pytest.mark.parametrize("hazard", HEARD)
def test_it_speaks_soon_after_the_first_write_that_may_be_wrong(hazard: str, blocks_per_step: int) -> None:
    config = replace(HEARD[hazard], canary=blocks_per_step)
    watched = Watched(usual_load(), config, until_it_speaks=True, device="cuda")
    begin = watched.first_move if hazard == "H5" else 0
    assert 0 < watched.first_word <= begin + SPEAKS_WITHIN
    assert hazard in watched.report.findings[0].hazards


@pytest.mark.parametrize("hazard", ["", *HEARD])
def test_beside_the_native_manager_it_hears_upstreams_calls_alone(hazard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVFIX_CANARY", "observe")
    config = HEARD[hazard] if hazard else ENGINES["native"]
    watched = Watched(usual_load(), config, until_it_speaks=bool(hazard), device="cuda")
    assert watched.report.state == "observes" and bool(watched.report.counts) == bool(hazard)
    assert hazard or watched.report.blocks_compared["live"] > 500


def test_it_speaks_of_blocks_that_nobody_computed() -> None:
    config = replace(without(TIGHT, "computed-blocks"), canary=8)
    watched = Watched(usual_load(), config, until_it_speaks=True, device="cuda")
    assert watched.report.findings[0].kind == "unfilled" and watched.wrong == []


V1_STEPS = 1000


@pytest.mark.parametrize("has_host", [False, True], ids=["", "host tier"])
@pytest.mark.parametrize("variant", ["B", "D", "F"])
def test_beside_a_v1_manager_it_is_silent(variant: str, has_host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_DEVICE", "torch")
    with watched_v1(variant, has_host=has_host) as traffic:
        traffic.run(V1_STEPS)
        is_silent(traffic)
        assert traffic.report.blocks_taken > V1_STEPS and traffic.contents.reads > V1_STEPS


@pytest.mark.parametrize("variant", ["B", "D"])
def test_beside_a_v1_manager_it_finds_one_bit(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_DEVICE", "torch")
    (found, *_), (slot, step) = planted(variant)
    assert (found.kind, found.slot, found.layers) == ("changed", slot, (0,)) and found.right_at <= step < found.wrong_at
