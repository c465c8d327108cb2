"""That the checks of `native-*` bite: each control takes one thing away, and the memory must show it."""

import ast
import inspect
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from integration.upstream import provided
from integration.upstream.native_crowds import ERAS
from integration.upstream.running import Result, apart
from integration.upstream.scenarios import SCENARIOS as ALL_SCENARIOS
from tests.managers.making import keywords
from trtllm_kvfix.managers import sequence
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache

TREES = Path(os.environ.get("UPSTREAM", ""))
pytestmark = pytest.mark.skipif(not (TREES / "S" / "tensorrt_llm").is_dir(), reason="UPSTREAM names no excerpts")
# What upstream's V1 class calls for what is refused at start: transfers, connectors, events, indexers, routing.
NOT_SERVED = {
    "get_indexer_k_cache_pool_data",
    "get_priority_by_block_id",
    "pool_configurations",
    "truncate_blocks",
    "analyze_prefix_reuse",
}
V1 = "KVCacheManager"
SCENARIOS = {each.name: each for each in ALL_SCENARIOS if each.kind == "native"}


def run(name: str, spoil: Callable[[Any], None] = lambda _: None) -> Result:
    assert multiprocessing.get_start_method(allow_none=True) in (None, "fork")
    scenario = SCENARIOS[name]

    def prepare(server: Any) -> None:
        scenario.prepare(server)
        spoil(server)

    return apart(TREES / "S", "S", replace(scenario, prepare=prepare), "all")


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


def nobody_holds(server: Any) -> None:
    """Blocks are said to be pinned and are not."""
    pins = server.manager.impl._books.pins
    pins.pin = lambda request_id: pins._core.get_cache_block_ids(request_id)[0]
    pins.unpin_chain = lambda _: None


def without_updates(server: Any) -> None:
    """Nobody is told that blocks move."""
    events = server.manager.impl.layout.events
    own = events._merged
    events._merged = lambda found, window: own([each for each in found if each.kind != "updated"], window)


def nobody_notes(server: Any) -> None:
    """What a request wants to be kept is lost with the constructor's keyword."""
    server.retention_of = lambda _: None


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


@pytest.mark.parametrize(
    ("name", "spoil", "complaint"),
    [
        ("native-pins", nobody_holds, "a pinned block"),
        ("native-events", without_updates, "the events say"),
        ("native-retention", nobody_notes, "that were to be kept"),
    ],
)
def test_those_beside_the_loop_see_what_is_wrong(name: str, spoil: Callable[[Any], None], complaint: str) -> None:
    found = run(name, spoil)
    assert found.result == "wrong"
    assert complaint in found.remark


def calls_on_impl(tree: Path) -> Iterator[tuple[str, int]]:
    """(name, positional arguments; -1 for an attribute) in upstream's V1 class."""
    source = (tree / "tensorrt_llm/_torch/pyexecutor/resource_manager.py").read_text(encoding="utf-8")
    (kind,) = (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == V1)
    called = {id(node.func): len(node.args) for node in ast.walk(kind) if isinstance(node, ast.Call)}
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.impl":
            yield node.attr, called.get(id(node), -1)


@pytest.mark.parametrize("era", ERAS)
def test_every_name_that_upstream_calls_is_there_and_takes_its_arguments(era: str) -> None:
    module = provided.bound_module()
    given = keywords(getattr(module, era))
    impl = NativeKvCache(**given)
    found = set(calls_on_impl(TREES / era))
    assert {"add_token", "refresh_blocks", "remove_sequence"} <= {name for name, _ in found}
    for name, arguments in found:
        if name in NOT_SERVED:
            assert not hasattr(impl, name), f"{name} is served after all"
            continue
        assert hasattr(impl, name), name
        if arguments >= 0:
            inspect.signature(getattr(impl, name)).bind(*range(arguments))
