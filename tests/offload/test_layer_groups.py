"""Several pools: blocks of each layer group have numbers, sizes and distances of their own, and travel together."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Device, open_device
from trtllm_kvfix.offload import KvfixOffloadWorker
from trtllm_kvfix.offload.transfers import BlockLayout, LayoutMismatch, blocks_by_group, layout_of, pool_of
from trtllm_kvfix.staging.place import on_stream

from .conftest import Bench, MakeBench, llm_args, serve_alone
from .executor import TOKENS_PER_BLOCK, Executor, Group, MakePool, own_pool
from .upstream_double import Request, State

WORDS = (8, 3, 5)  # of a token in each group
GAP_WORDS = 6  # between the blocks of a group


class GroupedExecutor(Executor):
    """A cache of three layer groups; no block has the same number in two of them."""

    def make_groups(self, device: Device, blocks: int, make_pool: MakePool) -> list[Group]:
        del make_pool
        numbers: list[Callable[[int], int]] = [lambda b: b, lambda b: blocks - b, lambda b: b + 2]
        return [
            Group.of(device.empty((blocks + 2, TOKENS_PER_BLOCK * words + GAP_WORDS), "uint32"), words, number)
            for words, number in zip(WORDS, numbers, strict=True)
        ]

    def register(self) -> None:
        self.manager.worker.register_kv_cache_layout(description(self.groups))
        self.manager.by_group = lambda blocks: [[group.number(block) for block in blocks] for group in self.groups]


def description(groups: list[Group], *, window_size: int | None = None) -> Any:
    """Upstream gives the description in this form."""
    return SimpleNamespace(
        tokens_per_block=TOKENS_PER_BLOCK,
        groups=tuple(group_of(group, number, window_size) for number, group in enumerate(groups)),
    )


def group_of(group: Group, number: int, window_size: int | None) -> Any:
    region = SimpleNamespace(
        base=group.place.address, stride=group.place.stride, size=4 * TOKENS_PER_BLOCK * group.words,
        num_slots=group.place.blocks, buffers=(SimpleNamespace(layer_id=number, role="key"),),
    )  # fmt: skip
    return SimpleNamespace(layer_group_id=number, layer_ids=(number,), window_size=window_size, regions=(region,))


def prompt(marker: int, length: int = 24) -> list[int]:
    return [marker, *range(1, length)]


@pytest.fixture
def grouped(make_bench: MakeBench) -> Bench:
    return make_bench(executor_class=GroupedExecutor)


def test_blocks_of_all_groups_come_back_together(grouped: Bench) -> None:
    assert [serve_alone(grouped, Request(number, prompt(number))) for number in (1, 2, 3)] == [0, 0, 0]
    before = counters.offload_loaded_bytes.value
    assert [serve_alone(grouped, Request(number + 10, prompt(number))) for number in (1, 2, 3)] == [20, 20, 20]
    assert counters.offload_loaded_bytes.value - before == 15 * 4 * TOKENS_PER_BLOCK * sum(WORDS)
    assert grouped.executor.corrupt == []
    assert grouped.executor.reads_checked > 3 * 6


@pytest.mark.parametrize("seed", range(2))
def test_traffic_with_chunks_cancellations_and_small_tiers(seed: int, make_bench: MakeBench) -> None:
    sizes = {"blocks": 40, "chunk_tokens": 8, "batch": 4}
    bench = make_bench(host_blocks=120, seed=seed, executor_class=GroupedExecutor, executor=sizes)
    executor, chance, number = bench.executor, random.Random(seed), 0

    def between(_: int) -> None:
        nonlocal number
        while number < 150 and len(executor.waiting) < 3:
            number += 1
            executor.submit(Request(number, prompt(chance.randrange(12), 20 + chance.randrange(20)), max_new_tokens=4))
        running = [one for one in executor.active if one.state in (State.CONTEXT, State.GENERATION)]
        if running and chance.random() < 0.05:
            executor.preempt(chance.choice(running))
        if executor.active and running and chance.random() < 0.05:  # the only one may just have been preempted
            executor.cancel(chance.choice(executor.active))

    between(0)
    executor.run(between)
    bench.scheduler.build_connector_meta(None)
    assert executor.corrupt == []
    assert executor.loaded_tokens > 100
    bench.index.check_invariants()
    assert len(bench.scheduler.side._sources) == 0


def test_preempted_blocks_of_one_number_in_different_groups_are_different(make_bench: MakeBench) -> None:
    bench = make_bench()
    side, request = bench.scheduler.side, Request(1, prompt(1))
    side.get_num_new_matched_tokens(request, 0)
    side.update_state_after_alloc(request, [[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]])
    report = SimpleNamespace(
        request_id=1, new_tokens=request.tokens, new_block_ids=[], computed_position=24,
        new_block_ids_by_layer_group=[[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]],
    )  # fmt: skip
    (job,) = side.build_connector_meta(SimpleNamespace(new_requests=[report], cached_requests=[])).stores
    assert job.blocks == (0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15)
    other = Request(2, prompt(2))
    for blocks, fences in (([[10], [5]], ()), ([[10], [10]], (job.number,)), ([[0], [5]], (job.number,))):
        side.get_num_new_matched_tokens(other, 0)
        side.request_reset(other)  # so that what it is given is somebody's of whom nothing is known
        side.update_state_after_alloc(other, blocks)
        assert side.build_connector_meta(None).fences == fences, blocks


def test_a_window_that_slides_is_refused_and_one_that_cannot_is_not(make_bench: MakeBench) -> None:
    groups = make_bench(executor_class=GroupedExecutor).executor.groups
    for tokens_max in (64, 32):
        assert len(layout_of(description(groups, window_size=64), TOKENS_PER_BLOCK, tokens_max).pools) == 3
    for too_many in (65, None):
        with pytest.raises(LayoutMismatch, match="layer group 0 has a window of 64 tokens"):
            layout_of(description(groups, window_size=64), TOKENS_PER_BLOCK, too_many)


def test_another_size_of_blocks_than_configured_is_refused_with_both(grouped: Bench) -> None:
    with pytest.raises(LayoutMismatch, match="blocks of 4 tokens, the configuration says 32"):
        layout_of(description(grouped.executor.groups), 32, None)


def test_a_layout_that_changes_is_refused_with_both(grouped: Bench) -> None:
    groups = grouped.executor.groups
    with on_stream(grouped.device, 0):
        grouped.worker.register_kv_cache_layout(description(groups))
        with pytest.raises(LayoutMismatch, match=r"was built for .*layer group 2.*, now "):
            grouped.worker.register_kv_cache_layout(description(groups[:2]))


def test_regions_that_all_ranks_hold_alike_travel_as_well() -> None:
    groups = GroupedExecutor.make_groups(None, open_device("cpu"), 4, own_pool)  # type: ignore[arg-type]
    described = description(groups[:1])
    described.groups[0].replicated_regions = group_of(groups[1], 0, None).regions
    layout = layout_of(described, TOKENS_PER_BLOCK, None)
    assert [pool.group for pool in layout.pools] == [0, 0]
    assert layout.block_bytes == 4 * TOKENS_PER_BLOCK * (8 + 3)


class DictExecutor(GroupedExecutor):
    """Builds that name layer groups instead of counting them."""

    def register(self) -> None:
        described = description(self.groups)
        described.groups = dict(reversed(list(enumerate(described.groups))))
        self.manager.worker.register_kv_cache_layout(described)
        self.manager.by_group = lambda blocks: {  # type: ignore[assignment,return-value]
            number: [group.number(block) for block in blocks]
            for number, group in reversed(list(enumerate(self.groups)))
        }


def test_groups_come_in_dicts_as_well(make_bench: MakeBench) -> None:
    bench = make_bench(executor_class=DictExecutor)
    assert [serve_alone(bench, Request(number, prompt(number))) for number in (1, 2)] == [0, 0]
    assert [serve_alone(bench, Request(number + 10, prompt(number))) for number in (1, 2)] == [20, 20]
    assert bench.executor.corrupt == []


def test_a_group_without_a_name_in_a_dict_has_no_blocks() -> None:
    assert blocks_by_group({2: [7], 0: [[5, 6]]}) == [[5, 6], [], [7]]
    assert blocks_by_group({}) == []


@pytest.mark.parametrize("name", ["window_size", "sliding_window_size"])
def test_a_window_that_slides_is_refused_by_whatever_name_it_has(name: str, grouped: Bench) -> None:
    described = description(grouped.executor.groups)
    setattr(described.groups[1], name, 1024)
    with pytest.raises(LayoutMismatch, match="layer group 1 has a window of 1024 tokens"):
        layout_of(described, TOKENS_PER_BLOCK, 4096)


@pytest.mark.parametrize(
    "told",
    [
        {"max_attention_window_vec": [4096, 1024]},
        {"kv_cache_manager_py_config": SimpleNamespace(layers=[SimpleNamespace(sliding_window_size=1024)])},
        {"kv_cache_manager_py_config": SimpleNamespace(layers=[SimpleNamespace(window_size=1024)])},
    ],
)
def test_a_window_of_which_no_description_tells_is_refused_with_the_first_batch(
    told: dict[str, Any], grouped: Bench
) -> None:
    full = SimpleNamespace(max_seq_len=4096, max_attention_window_vec=[4096, None])
    grouped.worker.note_cache_manager(full)
    with pytest.raises(LayoutMismatch, match="has a window of 1024 tokens, and requests have up to 4096"):
        grouped.worker.note_cache_manager(SimpleNamespace(max_seq_len=4096, **told))


def test_blocks_of_too_few_groups_are_not_addressed(grouped: Bench) -> None:
    layout = layout_of(description(grouped.executor.groups), TOKENS_PER_BLOCK, None)
    with pytest.raises(LayoutMismatch, match="blocks of 1 layer groups"):
        layout.device_addresses((0, 1), 2)
    with pytest.raises(LayoutMismatch, match="block of the device -1 to 1"):
        layout.device_addresses((0, 1, -1, 1, 0, 1), 2)


def test_a_cache_without_pools_and_blocks_that_overlap_are_refused() -> None:
    pool = pool_of(open_device("cpu").empty((4, 8), "uint32"))
    with pytest.raises(LayoutMismatch, match="there is no pool"):
        BlockLayout([])
    with pytest.raises(LayoutMismatch, match="4 blocks of 32 bytes, 31 apart"):
        BlockLayout([pool._replace(stride=31)])


@pytest.mark.parametrize(
    ("place", "name", "value", "why"),
    [
        ("", "enable_attention_dp", True, "enable_attention_dp is set"),
        ("", "speculative_config", object(), "speculative_config is set"),
        ("kv_cache_config", "enable_block_reuse", False, "enable_block_reuse is false"),
        ("kv_cache_config", "max_attention_window", [4096, 1024], "has a window of 1024 tokens"),
    ],
)
def test_what_the_connector_cannot_serve_is_refused_at_the_start(
    place: str, name: str, value: object, why: str, make_bench: MakeBench
) -> None:
    make_bench()  # sets host_bytes
    args = llm_args()
    args.max_seq_len = 4096
    setattr(getattr(args, place) if place else args, name, value)
    with pytest.raises((SettingsError, LayoutMismatch), match=why):
        KvfixOffloadWorker(args)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [("kv_cache_config", "dtype", "NVFP4"), ("", "sparse_attention_config", object())],
)
def test_a_tensor_that_is_not_all_of_a_block_is_refused_and_a_layout_is_not(
    place: str, name: str, value: object, grouped: Bench
) -> None:
    args = grouped.worker._args
    setattr(getattr(args, place) if place else args, name, value)
    groups = grouped.executor.groups
    with on_stream(grouped.device, 0):
        grouped.worker.register_kv_cache_layout(description(groups))
        with pytest.raises(SettingsError, match=f"{name} is"):
            grouped.worker.register_kv_caches(groups[0].pool)


def test_serving_without_a_registered_cache_is_an_error(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.scheduler.wait_for_initialization()
    bench.scheduler.side._link.slots = bench.scheduler.side._policy = None
    with pytest.raises(KvfixError, match="before it has registered the cache"):
        bench.scheduler.wait_for_initialization()
