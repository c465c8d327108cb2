"""That the checks of `native-*` bite: each control takes one thing away, and the memory must show it."""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from integration.upstream.running import Result, apart
from integration.upstream.scenarios import SCENARIOS as ALL_SCENARIOS
from trtllm_kvfix.managers import sequence

TREES = Path(os.environ.get("UPSTREAM", ""), "S")
pytestmark = pytest.mark.skipif(not (TREES / "tensorrt_llm").is_dir(), reason="UPSTREAM names no excerpts")
SCENARIOS = {each.name: each for each in ALL_SCENARIOS if each.kind == "native"}


def run(name: str, spoil: Callable[[Any], None] = lambda _: None) -> Result:
    assert multiprocessing.get_start_method(allow_none=True) in (None, "fork")
    return apart(TREES, "S", replace(SCENARIOS[name], prepare=spoil), "all")


def without_copies(server: Any) -> None:
    """The books say that blocks were copied, and nobody copies them."""
    server.manager.impl._copies._memory.waves = lambda _: iter(())


def without_waiting(server: Any) -> None:
    """A ticket ends when it is submitted: the block can be found before it is there."""
    own = server.manager.impl._copies

    def end() -> None:
        while own._pending:
            own._core.complete(own._pending.popleft()[0])

    own.end = end


def ahead_of_the_device(_: Any) -> None:
    """Stored up to where the request's position stands at the call."""

    def reported(self: sequence.Sequence) -> int:
        self.computed = max(self.computed, min(self.request.context_current_position, self.prompt_length))
        return self.computed

    sequence.Sequence.reported = reported  # type: ignore[method-assign]  # in a process of its own


@pytest.mark.parametrize(
    ("name", "spoil", "complaint"),
    [
        ("native-crowd-small", without_copies, "reads"),
        ("native-crowd-host", without_copies, "a pinned block"),
        ("native-crowd-host", without_waiting, "a pinned block"),
        ("native-crowd-chunks", ahead_of_the_device, "a pinned block"),
    ],
)
def test_what_is_left_out_shows(name: str, spoil: Callable[[Any], None], complaint: str) -> None:
    assert run(name).result == "right"
    found = run(name, spoil)
    assert found.result == "wrong"
    assert "corrupt" in found.remark
    assert complaint in found.remark
