"""A checkout is compared and run, and where that shows nothing, the exit code says so."""

from pathlib import Path

import pytest

from integration.upstream.assemble import DIFFERS, main

ERA = "S"


def test_a_checkout_that_differs_is_no_error_of_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    assert main(["--verify", str(tmp_path), "--era", ERA]) == DIFFERS


def test_what_is_no_checkout_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no tensorrt_llm"):
        main(["--verify", str(tmp_path), "--era", ERA])


def test_an_era_of_which_nothing_was_read_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    with pytest.raises(SystemExit, match="nothing of era 'Z'; it has A, "):
        main(["--verify", str(tmp_path), "--era", "Z"])


@pytest.mark.parametrize(
    ("by_arm", "code"),
    [
        ({"off": "wrong", "only": "right", "all": "right"}, 0),
        ({"off": "right", "only": "not-run", "all": "right"}, 0),
        ({"off": "right", "only": "wrong", "all": "right"}, 1),
        ({"off": "right", "only": "not-run", "all": "not-run"}, 1),
        ({}, 1),
    ],
)
def test_the_exit_code_needs_an_arm_that_ran(by_arm: dict[str, str], code: int) -> None:
    pytest.importorskip("torch", reason="the rig needs torch, on the CPU")
    from integration.upstream.__main__ import verdict  # noqa: PLC0415  it needs torch
    from integration.upstream.running import Result  # noqa: PLC0415

    assert verdict([Result(ERA, "offsets-overlap", "all", arm, found) for arm, found in by_arm.items()]) == code


def test_a_checkout_keeps_what_it_has_and_lacks_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the rig needs torch, on the CPU")
    from integration.upstream.finder import Tree  # noqa: PLC0415

    assert Tree(tmp_path, {}).lacking == {"KVCacheManager": [], "PyExecutor": []}
