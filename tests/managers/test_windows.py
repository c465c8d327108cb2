"""Layers of several windows: pools of their own, blocks that leave while their request lives, and what is refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.managers.making import Bench, bench, keywords
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.capacity import scheduler_for
from trtllm_kvfix.managers.keywords import layout_of

FULL, SLIDING = 64, 16
VECTOR = [FULL, SLIDING]  # layers 0 and 2 see everything


def windows(primary: int = 16, host: int = 0, sliding: int | None = None) -> dict[str, Any]:
    counts = {FULL: (primary, host), SLIDING: (sliding or primary, host)}
    return {"max_attention_window_vec": VECTOR, "blocks_per_window": counts, "num_kv_heads_per_layer": [2, 1, 2, 2]}


@pytest.fixture(params=["S", "D"])
def mixed(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench(request.param, **windows()) as b:
        yield b


def free(b: Bench) -> dict[int, int]:
    found: dict[int, int] = b.impl.get_kv_cache_stats().num_free_blocks_per_window_size
    return found


def generate(b: Bench, request: Any, count: int) -> None:
    for token in range(count):
        b.prepare(generations=[request])
        request.add_new_token(9_001 + token, 0)


def test_each_window_has_a_pool_for_each_number_of_heads(mixed: Bench) -> None:
    """Windows ascending, heads ascending, as upstream orders them."""
    assert mixed.impl.get_layer_to_pool_mapping().tolist() == [[2, 0], [0, 0], [2, 1], [1, 0]]
    assert (mixed.impl.num_pools, mixed.impl.is_variable_window) == (3, True)
    assert mixed.impl.max_attention_window_vec == VECTOR
    pointers = mixed.impl.get_block_pool_pointers()
    assert len(set(pointers[:, 0].tolist())) == 3
    assert mixed.impl.get_primary_pool_data(2).shape == (16, 2, 2 * 8 * 4)


def test_blocks_leave_the_window_while_their_request_lives(mixed: Bench) -> None:
    request = mixed.request(1, range(18))
    mixed.prepare([request])
    mixed.computed(request)
    mixed.impl.store_context_blocks(request)
    assert free(mixed) == {FULL: 11, SLIDING: 11}
    generate(mixed, request, 12)
    assert free(mixed) == {FULL: 16 - 8, SLIDING: 16 - 8 + 3}, "12 positions are computed that nobody sees any more"
    assert mixed.impl.get_num_front_blocks_removed(1, SLIDING) == 3
    assert mixed.impl.get_num_front_blocks_removed(1, FULL) == 0
    mixed.impl.remove_sequence(1, request, False)
    assert free(mixed) == {FULL: 16, SLIDING: 16}


def test_a_block_that_has_left_is_read_as_one_that_has_not(mixed: Bench) -> None:
    """No kernel sees its tokens, but one may load it with a tile, so it must not be memory that nobody has written."""
    request = mixed.request(1, range(18))
    mixed.prepare([request])
    mixed.computed(request)
    mixed.impl.store_context_blocks(request)
    generate(mixed, request, 12)
    table = np.full((3, 4, 2, 16), 7, np.int32)
    mixed.impl.copy_batch_block_offsets(table, [1], 1, 2)
    sliding, full = (mixed.impl.get_cache_block_ids(1, size)[0] for size in (SLIDING, FULL))
    assert len(sliding) == len(full) == 8
    assert sliding[:3] == [sliding[3]] * 3
    assert len(set(sliding[3:])) == 5
    for pool, (slots, layers) in enumerate([(sliding, 1), (sliding, 1), (full, 2)]):
        assert table[pool, 2, 0, :8].tolist() == [slot * layers * 2 for slot in slots]
        assert table[pool, 2, 1, :8].tolist() == [slot * layers * 2 + 1 for slot in slots]
    assert (table[:, [0, 1, 3]] == 7).all(), "the rows of others"


def test_what_may_still_be_computed_does_not_leave() -> None:
    """In the overlap loop a prompt's last chunk is reported when the next step has been prepared."""
    with bench(**windows()) as b:
        request = b.request(1, range(32))
        b.prepare([request])
        b.computed(request)
        b.prepare(generations=[request])
        assert b.impl.get_num_front_blocks_removed(1, SLIDING) == 0
        b.impl.store_context_blocks(request)
        assert b.impl.get_num_front_blocks_removed(1, SLIDING) == 4


def test_copies_move_the_bytes_of_their_own_window() -> None:
    """Pushed to the host tier by another prompt, and back: each layer's bytes, in the slots of its window."""
    with bench(**windows(primary=16, host=32)) as b:
        b.served(1, range(16))
        layers = [np.asarray(b.impl.get_primary_pool_data(layer)) for layer in range(4)]
        for number, layer in enumerate(layers):
            layer[:] = (np.arange(layer.size, dtype=np.uint16) * 5 + number).reshape(layer.shape).view(np.float16)
        kept = [layer.copy().view(np.uint16) for layer in layers]
        first = b.request(2, range(16))
        b.prepare([first])
        sizes = [VECTOR[number % 2] for number in range(4)]
        before = [b.impl.get_cache_block_ids(2, size)[0] for size in sizes]
        b.impl.remove_sequence(2, first, False)
        others = [b.request(n, range(100 * n, 100 * n + 31)) for n in (3, 4)]
        b.prepare(others)
        b.device.synchronize(b.stream)
        for layer in layers:
            layer[:] = 0
        for each in others:
            b.impl.remove_sequence(each.request_id, None, False)
        back = b.request(5, range(16))
        b.prepare([back])
        assert b.reused(back) == 15
        b.device.synchronize(b.stream)
        for number, size in enumerate(sizes):
            for was, now in zip(before[number], b.impl.get_cache_block_ids(5, size)[0], strict=True):
                assert (layers[number][now].view(np.uint16) == kept[number][was]).all(), f"layer {number}"


@pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"])
@pytest.mark.parametrize("short", [FULL, SLIDING])
def test_a_request_waits_for_the_window_that_has_the_fewest_blocks(policy: str, short: int) -> None:
    counts = {FULL: (40, 0), SLIDING: (40, 0)} | {short: (16, 0)}
    with bench(**windows() | {"blocks_per_window": counts}) as b:
        first, second = (b.request(n, range(100 * n, 100 * n + 40)) for n in (1, 2))
        scheduler = scheduler_for(8, b.impl, None, policy)
        assert scheduler is not None
        assert scheduler.schedule_request([first, second])[0] == [first]
        assert b.impl.get_remaining_blocks_to_completion(first, short) == 12


def test_events_name_their_window() -> None:
    from trtllm_kvfix.managers.reports import EventManager  # noqa: PLC0415

    events = EventManager(64)
    with bench(**windows(), event_manager=events) as b:
        b.served(1, range(9))
        b.impl.flush_iteration_events()
        found = events.get_latest_events(0)
        assert [each.window_size for each in found[:2]] == [SLIDING, FULL]
        stored = {each.window_size: len(each.data.blocks) for each in found[2:]}
        assert stored == {SLIDING: 2, FULL: 2}


def test_numbers_are_those_of_all_windows(mixed: Bench) -> None:
    mixed.served(1, range(10))
    stats = mixed.impl.get_kv_cache_stats()
    assert (stats.max_num_blocks, stats.free_num_blocks, mixed.impl.max_num_blocks) == (32, 32, 32)
    found = mixed.impl.get_iteration_stats()
    assert {size: each.primary_max_num_blocks for size, each in found.items()} == {FULL: 16, SLIDING: 16}
    assert found[SLIDING].iter_alloc_new_blocks == 0, "they are counted once"


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"blocks_per_window": {FULL: (16, 0), SLIDING: (15, 0)}}, "blocks_per_window"),
        ({"blocks_per_window": {FULL: (16, 0), 32: (16, 0)}}, "blocks_per_window"),
        ({"kv_connector_manager": object()}, "kv_connector_manager"),
        ({"swa_context_reuse": False}, "swa_context_reuse"),
    ],
)
def test_what_windows_cannot_do_is_refused_by_name(changes: dict[str, Any], keyword: str) -> None:
    era = _era()
    layout_of(keywords(era, **windows()))
    with pytest.raises(NotServed, match=f"^{keyword}="):
        layout_of(keywords(era, **windows() | changes))


def test_pins_are_refused(mixed: Bench) -> None:
    request = mixed.request(1, range(9))
    mixed.prepare([request])
    for call in (
        lambda: mixed.impl.pin_blocks(1),
        lambda: mixed.impl.store_blocks_for_reuse(1, request, True),
        lambda: mixed.impl.remove_sequence(1, request, True),
    ):
        with pytest.raises(NotServed, match="windows are not pinned"):
            call()
        assert mixed.impl.get_token_count(1) == 9, "it goes on as before"


def _era() -> Any:
    with bench() as b:
        return b.era
