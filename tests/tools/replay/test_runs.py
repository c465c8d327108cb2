"""Several replays in a row, and the picture of a sweep."""

from pathlib import Path

import pytest

from trtllm_kvfix.errors import SettingsError
from trtllm_kvfix.native import BlockManager, BlockManagerConfig
from trtllm_kvfix.tools import pictures
from trtllm_kvfix.tools.pictures import check_plot
from trtllm_kvfix.tools.replay import engine
from trtllm_kvfix.tools.replay.command import generate
from trtllm_kvfix.tools.replay.report import plot
from trtllm_kvfix.tools.replay.runs import comparison, execute, sweep


def test_more_host_memory_serves_more_until_everything_fits() -> None:
    made = generate("chat", seed=0)
    shape = made.shape.model_copy(update={"blocks_primary": 768})
    progress: list[int] = []
    outcomes, partial = execute(made.workload, sweep(shape, [4096, 0, 512, 1024, 2048, 512]), progress.append)
    assert not partial
    assert [outcome.shape.blocks_host for outcome in outcomes] == [0, 512, 1024, 2048, 4096]
    rates = [outcome.tokens.hit_rate for outcome in outcomes]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] + 0.1
    assert outcomes[0].tokens.host == 0
    assert progress == sorted(progress)
    assert progress[-1] == 5 * len(made.workload.requests)


def test_an_interrupted_sweep_ends_with_its_partial_point() -> None:
    made = generate("small", seed=0)
    total = len(made.workload.requests)

    def interrupt(done: int) -> None:
        if done > total + 20:
            raise KeyboardInterrupt

    outcomes, partial = execute(made.workload, sweep(made.shape, [0, 64, 128]), interrupt)
    assert partial
    assert [outcome.partial for outcome in outcomes] == [False, True]


def test_an_interrupt_between_two_replays_keeps_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate("small", seed=0)
    configs: list[BlockManagerConfig] = []

    def pool(config: BlockManagerConfig) -> BlockManager:
        configs.append(config)
        if len(configs) == 2:
            raise KeyboardInterrupt
        return BlockManager(config)

    monkeypatch.setattr(engine, "BlockManager", pool)
    outcomes, partial = execute(made.workload, comparison(made.shape), lambda _done: None)
    assert partial
    assert [outcome.partial for outcome in outcomes] == [False]


@pytest.mark.parametrize(("suffix", "begins_with"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".SVG", b"<?xml")])
def test_the_plot_is_of_the_kind_that_its_name_says(tmp_path: Path, suffix: str, begins_with: bytes) -> None:
    pytest.importorskip("matplotlib")
    made = generate("small", seed=0)
    outcomes, _ = execute(made.workload, sweep(made.shape, [0, 64]), lambda _done: None)
    path = tmp_path / f"curve{suffix}"
    check_plot(path)
    plot(outcomes, "small", path)
    assert path.read_bytes().startswith(begins_with)


def test_a_plot_that_cannot_be_drawn_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"curve\.pdf: the file name ends in \.png or \.svg"):
        check_plot(tmp_path / "curve.pdf")
    with pytest.raises(SettingsError, match=r"there is no folder .*missing"):
        check_plot(tmp_path / "missing" / "curve.png")
    monkeypatch.setattr(pictures, "find_spec", lambda _name: None)
    with pytest.raises(
        SettingsError, match=r"needs matplotlib, which is not installed: pip install 'trtllm-kvfix\[report\]'"
    ):
        check_plot(tmp_path / "curve.png")
