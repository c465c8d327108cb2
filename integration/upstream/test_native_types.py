"""Upstream's classes and our `.impl` pass each other what the bound extension declares, and nothing else."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from integration.upstream.native_types import Declared, declared, describe, shown, watched
from integration.upstream.test_native import run
from tests.bound import load
from tests.bound.making import WINDOW, make_manager, unique
from tests.managers.making import Bench, bench
from trtllm_kvfix.managers.native_kv_cache import NativeKvCache

TREES = Path(os.environ.get("UPSTREAM", ""))
ERAS = ("S", "D")
MODULE = load()
HEADS = [2, 2]
TENSORS = {
    "get_block_pool_pointers": (),
    "get_block_scale_pool_pointers": (),
    "get_layer_to_pool_mapping": (),
    "get_primary_pool_data": (0,),
    "get_unique_primary_pool": (),
}
ATTRIBUTES = (
    "cross_kv", "enable_block_reuse", "max_blocks_per_seq", "max_num_blocks", "num_pools", "tokens_per_block",
)  # fmt: skip
PROMPT = list(range(10))


def declarations(era: str) -> dict[str, Declared]:
    """The declarations of the methods that our manager also has."""
    found = declared(getattr(MODULE, era).KVCacheManager, MODULE)
    return {name: each for name, each in found.items() if name in dir(NativeKvCache)}


def watch(monkeypatch: pytest.MonkeyPatch, era: str, called: Callable[[str, list[str]], None]) -> None:
    for name, declaration in declarations(era).items():
        monkeypatch.setattr(NativeKvCache, name, watched(getattr(NativeKvCache, name), declaration, called))


def refuse(_: str, objections: list[str]) -> None:
    if objections:
        raise TypeError("; ".join(objections))


@pytest.mark.skipif(not (TREES / "S" / "tensorrt_llm").is_dir(), reason="UPSTREAM names no excerpts")
@pytest.mark.parametrize(
    ("era", "name"),
    [
        ("S", "native-pins-host"),
        ("S", "native-events"),
        ("S", "native-windows"),
        ("D", "native-served"),
        ("D", "native-told"),
    ],
)
def test_in_a_server_all_is_of_its_declared_type(era: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(monkeypatch, era, refuse)
    found = run(name, era=era)
    assert found.result == "right", found.remark


@pytest.mark.skipif(not (TREES / "S" / "tensorrt_llm").is_dir(), reason="UPSTREAM names no excerpts")
def test_a_server_that_gets_another_type_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeKvCache, "refresh_blocks", lambda _: torch.tensor(0))
    watch(monkeypatch, "S", refuse)
    found = run("native-served")
    assert found.result != "right"
    assert "refresh_blocks: result is torch.Tensor, declared is None" in found.remark


class Calls:
    def __init__(self) -> None:
        self.objections: list[str] = []
        self.names: set[str] = set()

    def __call__(self, name: str, objections: list[str]) -> None:
        self.names.add(name)
        self.objections += objections


@pytest.fixture
def bound_manager(era: str) -> Iterator[Any]:
    MODULE.set_tensor_factory(lambda shape, dtype, _: torch.zeros(tuple(shape), dtype=getattr(torch, dtype)))
    manager = make_manager(getattr(MODULE, era), num_kv_heads_per_layer=HEADS)
    manager.allocate_pools(False)
    yield manager
    MODULE.set_tensor_factory(None)


@pytest.mark.parametrize("era", ERAS)
def test_every_method_that_both_have_answers_as_declared(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    watch(monkeypatch, era, calls)
    with bench(era, num_kv_heads_per_layer=HEADS, host=8) as b:
        ask_everything(b)
    assert calls.objections == []
    assert set(declarations(era)) - calls.names == set(), "what nobody has called shows nothing"


def ask_everything(b: Bench) -> None:
    impl = b.impl
    del impl.add_token  # it goes past the class, where calls are watched
    for name, arguments in TENSORS.items():
        getattr(impl, name)(*arguments)
    b.served(1, PROMPT)
    request = b.request(2, PROMPT)
    impl.start_scheduling()
    impl.get_remaining_blocks_to_completion(request, WINDOW)
    impl.get_needed_blocks_one_step(request, True, WINDOW)
    b.prepare([request])
    b.computed(request)
    b.prepare([], [request])
    table = torch.zeros((impl.num_pools, 8, 2, impl.max_blocks_per_seq), dtype=torch.int32)
    impl.copy_batch_block_offsets(table, [2], 1, 0)
    [slots] = impl.get_cache_block_ids(2, WINDOW)
    impl.get_batch_cache_block_ids([2], WINDOW)
    impl.get_kv_cache_stats()
    impl.flush_iteration_events()
    impl.get_latest_events(0)
    impl.rewind_kv_cache(2, 1)
    impl.store_context_blocks(request)
    impl.pin_blocks(2)
    for pinned in (impl.store_blocks_for_reuse(2, request, True), impl.store_blocks_for_reuse(2, request, False)):
        if pinned:
            impl.unpin_blocks_by_id(pinned)
    ask_what_only_some_have(b, request, slots)
    last = impl.remove_sequence(2, request, True)
    assert last is not None
    impl.unpin_blocks_by_id(last)
    impl.reset_reuse_state()
    impl.release_pools()


def ask_what_only_some_have(b: Bench, request: Any, slots: list[int]) -> None:
    tokens = unique(b.era, PROMPT)
    arguments: dict[str, tuple[Any, ...]] = {
        "get_last_block_id": (2,),
        "get_token_count": (2,),
        "get_priority_by_block_id": (slots[0], WINDOW),
        "get_iteration_stats": (),
        "analyze_prefix_reuse": (tokens, b.request(3, PROMPT)),
        "find_new_context_block": (tokens, b.request(3, PROMPT)),
        "get_remaining_blocks_to_completion_batch": ([request], WINDOW),
        "get_num_front_blocks_removed": (2, WINDOW),
    }
    for name, given in arguments.items():
        getattr(b.impl, name)(*given)
    other = b.request(4, list(range(100, 106)))
    b.impl.sync_transfer_manager_with_buffer_manager()
    b.impl.add_sequence_batch([(4, 6, 1)], [other])
    b.impl.refresh_blocks()
    b.impl.remove_sequence(4, other, False)


@pytest.mark.parametrize("era", ERAS)
def test_tensors_and_attributes_are_of_the_kind_that_the_bound_manager_has(era: str, bound_manager: Any) -> None:
    with bench(era, num_kv_heads_per_layer=HEADS) as b:
        for name, arguments in TENSORS.items():
            ours, theirs = (getattr(each, name)(*arguments) for each in (b.impl, bound_manager))
            assert describe(ours) == describe(theirs), name
        for name in ATTRIBUTES:
            assert type(getattr(b.impl, name)) is type(getattr(bound_manager, name)), name


def test_what_is_of_another_type_is_objected_to() -> None:
    """The check can fail: for each kind, values that a caster or a reader would not take."""
    signature = "def f(self, a: int, b: collections.abc.Sequence[int], /) -> int | list[int] | None"
    method = Declared("f", signature, MODULE)
    assert method.objections((1, [2]), {}, None) == method.objections((1, (2,)), {}, [3]) == []
    numpy_int = torch.tensor([3]).numpy()[0]
    bad: list[tuple[tuple[Any, ...], Any]] = [
        ((1.0, []), 1),
        ((True, []), 1),
        ((1, 2), 1),
        ((1, ["2"]), 1),
        ((1, []), numpy_int),
        ((1, []), (1,)),
    ]
    bad += [((1, []), True), ((1, []), [numpy_int]), ((1, [], 3), 1)]
    for given, result in bad:
        assert len(method.objections(given, {}, result)) == 1, (given, shown(result))
