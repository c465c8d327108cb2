"""Needs TensorRT-LLM. Every fix knows what it finds, can be put on and comes off without a trace."""

from collections.abc import Iterator
from typing import Any

import pytest

from integration.trtllm.installed import imported
from trtllm_kvfix.fixes import ALL
from trtllm_kvfix.overlay.fix import State
from trtllm_kvfix.overlay.registry import Registry
from trtllm_kvfix.overlay.upstream import Upstream
from trtllm_kvfix.settings import FixSettings, Settings


@pytest.fixture(scope="module")
def up() -> Upstream:
    return imported()


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_the_probe_knows_this_build(fix: Any, up: Upstream) -> None:
    answer = fix.probe(up)
    assert answer.state is not State.UNKNOWN, f"{fix.id}: {answer.reason}"
    assert answer.reason


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry(ALL)
    yield made
    made.revert()


def test_what_is_needed_goes_on_and_comes_off(registry: Registry, up: Upstream) -> None:
    needed = [fix for fix in ALL if fix.probe(up).state is State.NEEDED]
    seams = [(each.seam.module, each.seam.path) for fix in needed for each in fix.replacements(up, FixSettings())]
    before = [up.attribute(module, path) for module, path in seams]
    report = registry.apply(Settings(), up, at_last=True)
    assert set(report.applied) == {fix.id for fix in needed}
    assert all(up.attribute(*seam) is not original for seam, original in zip(seams, before, strict=True))
    assert registry.revert() == []
    assert [up.attribute(*seam) for seam in seams] == before


@pytest.mark.parametrize("fix", ALL, ids=lambda fix: fix.id)
def test_the_mechanism_holds_on_this_machine(fix: Any) -> None:
    fix.self_test()
