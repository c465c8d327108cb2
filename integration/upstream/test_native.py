"""The checks of `native-*` bite: each control takes one thing away, and the memory must show it."""

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
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache

TREES = Path(os.environ.get("UPSTREAM", ""))
pytestmark = pytest.mark.skipif(not (TREES / "S" / "tensorrt_llm").is_dir(), reason="UPSTREAM names no excerpts")
# Calls of upstream's V1 class for features that are refused at start: indexers, pools of different shapes.
NOT_SERVED = {
    "get_indexer_k_cache_pool_data",
    "pool_configurations",
}
# Calls of D's V1 class in methods that are not among the excerpts, with their arguments.
BEYOND_EXCERPTS = {("commit_and_get_block_hashes_for_request", 2), ("get_memory_pool_block_indices", 2)}
V1 = "KVCacheManager"
SCENARIOS = {each.name: each for each in ALL_SCENARIOS if each.kind == "native"}


def run(name: str, spoil: Callable[[Any], None] = lambda _: None, era: str = "S") -> Result:
    assert multiprocessing.get_start_method(allow_none=True) in (None, "fork")
    scenario = SCENARIOS[name]

    def prepare(server: Any) -> None:
        scenario.prepare(server)
        spoil(server)

    era = era if era in scenario.eras else "D"
    return apart(TREES / era, era, replace(scenario, prepare=prepare), "all")


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


def ahead_of_the_device(server: Any) -> None:
    """Stored up to where the request's position stands at the call."""
    impl = server.manager.impl

    def report(request: Any) -> None:
        computed = min(request.context_current_position, request.prompt_len)
        if impl._requests.holds(request.request_id) and not impl._requests.is_private(request.request_id):
            impl.core.store_context_blocks(request.request_id, computed)

    impl.store_context_blocks = report


def nobody_holds(server: Any) -> None:
    """Blocks are said to be pinned and are not."""
    pins = server.manager.impl._books.pins
    pins.pin = lambda request_id: pins._core.get_cache_block_ids(request_id)[0]
    pins.unpin_chain = lambda _: None


def without_updates(server: Any) -> None:
    """No event reports that blocks move."""
    events = server.manager.impl.layout.events
    own = events._merged
    events._merged = lambda found, window: own([each for each in found if each.kind != "updated"], window)


def tables_of_other_windows(server: Any) -> None:
    slots = server.manager.impl._books.slots
    own = slots._table
    slots._table = lambda ids: own(ids)[::-1]


def a_model_that_looks_further_back(server: Any) -> None:
    """A block that has left a window is somebody else's by now."""
    engine = server.engine
    own = engine._window
    engine._window = lambda pool: own(pool) + 3 * server.manager.tokens_per_block


def by_other_names(server: Any) -> None:
    """Hashes of a root that no request has."""
    impl = server.manager.impl
    own = impl.commit_and_get_block_hashes_for_request
    impl.commit_and_get_block_hashes_for_request = lambda *of: [each ^ 1 for each in own(*of)]


def in_other_slots(server: Any) -> None:
    """A connector gets blocks that are not the request's."""
    server.manager.get_cache_indices = lambda request: list(range(len(request.get_tokens(0)) // 4 + 1))


def nobody_recomputes(server: Any) -> None:
    """A request whose load has failed is not put back."""

    class Lost(dict[int, int]):
        def __setitem__(self, *_: int) -> None: ...

    server.connector.worker.side.recompute = Lost()


def failures_end_well(server: Any) -> None:
    """Copies that have failed are said to have arrived."""
    copies = server.manager.impl._copies
    copies._fail = lambda ticket, _: copies._core.complete(ticket)


def nobody_notes(server: Any) -> None:
    """A request's wish to be kept is lost with the constructor's keyword."""
    server.retention_of = lambda _: None


@pytest.mark.parametrize(
    ("name", "spoil", "complaint"),
    [
        ("native-crowd-small", without_copies, "reads"),
        ("native-crowd-host", without_copies, "a pinned block"),
        ("native-crowd-host", without_waiting, "a pinned block"),
        ("native-crowd-chunks", ahead_of_the_device, "a pinned block"),
        ("native-windows", tables_of_other_windows, "reads"),
        ("native-windows", a_model_that_looks_further_back, "reads"),
        ("native-windows-host", without_copies, "a pinned block"),
        ("native-windows-chunks", ahead_of_the_device, "a pinned block"),
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
        ("native-ours-load-fails", nobody_recomputes, "corrupt"),
        ("native-ours-fail-offloads", failures_end_well, "a pinned block"),
        ("native-told", by_other_names, "its hashes are not"),
        ("native-told", in_other_slots, "a pinned block"),
        ("native-told", nobody_notes, "that were"),
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
    found = set(calls_on_impl(TREES / era)) | BEYOND_EXCERPTS
    assert {"add_token", "refresh_blocks", "remove_sequence"} <= {name for name, _ in found}
    for name, arguments in found:
        if name in NOT_SERVED:
            assert not hasattr(impl, name), f"{name} is served after all"
            continue
        assert hasattr(impl, name), name
        if arguments >= 0:
            inspect.signature(getattr(NativeKvCache, name)).bind(impl, *range(arguments))
