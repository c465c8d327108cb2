"""Every keyword of upstream's constructor is looked at. What is not served is refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.bound import load
from tests.managers.making import keywords
from trtllm_kvfix.errors import NotServed
from trtllm_kvfix.managers.keywords import layout_of

S = load().S


@pytest.mark.parametrize(
    "changes",
    [
        {"max_beam_width": 2},
        {"sink_token_length": 4},
        {"blocks_per_window": {64: (8, 0), 16: (8, 0)}},
        {"max_attention_window_vec": [64, 16], "blocks_per_window": {64: (16, 0)}},
        {"max_attention_window_vec": [-1], "blocks_per_window": {-1: (16, 0)}},
        {"dtype": S.DataType.NVFP4},
        {"dtype": S.DataType.INT8},
        {"cache_type": S.CacheType.CROSS},
        {"num_kv_heads_per_layer": [2, 0]},
        {"num_kv_heads_per_layer": []},
        {"size_per_head": 0},
        {"event_manager": object()},
        {"enable_indexer_k_cache": True},
        {"linear_attention_metadata": object()},
        {"pool_configurations": [SimpleNamespace(size_per_head=16, dtype=S.DataType.HALF)]},
        {"blocks_per_window": {64: (8, 8)}, "onboard_blocks": False},
        {"a_keyword_of_tomorrow": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_served_is_refused_by_its_keyword(changes: dict[str, Any]) -> None:
    layout_of(keywords(S))
    with pytest.raises(NotServed, match=f"^{list(changes)[-1]}="):
        layout_of(keywords(S, **changes))


def test_a_window_below_the_longest_sequence_slides_where_nothing_else_says_so() -> None:
    cut = keywords(S, max_attention_window_vec=[32], blocks_per_window={32: (16, 0)})
    assert layout_of(cut).blocks_per_sequence == 16, "1.2 passes the length before it was cut to the pool"
    assert not layout_of(cut).slides
    assert layout_of(cut | {"temp_attention_window_inputs": object()}).slides
    del cut["temp_attention_window_inputs"]
    assert layout_of(cut).slides


@pytest.mark.parametrize(("longest", "is_served"), [(64, True), (44, True), (39, False)])
def test_windows_are_as_long_as_the_largest_where_a_small_pool_has_cut_it(longest: int, is_served: bool) -> None:
    """11 blocks hold 44 tokens. Where the pool was not the reason, sequences are as long as before."""
    counts = {longest: (16 if longest == 64 else 11, 0), 16: (16 if longest == 64 else 11, 0)}
    given = keywords(S, max_attention_window_vec=[longest, 16], blocks_per_window=counts)
    if is_served:
        assert [each.size for each in layout_of(given).windows] == [16, longest]
        return
    with pytest.raises(NotServed, match=r"^blocks_per_window=.*sequence of 64 tokens"):
        layout_of(given)


def test_the_only_window_is_that_of_all_layers_whatever_it_is_called() -> None:
    """For MLA upstream renames it in one of the two."""
    layout = layout_of(keywords(S, max_attention_window_vec=[40], blocks_per_window={64: (16, 0)}))
    assert layout.layers == 3
    assert layout.window_of(40) is layout.window_of(64)


def test_a_constructor_that_says_too_little_is_refused() -> None:
    given = keywords(S)
    del given["dtype"]
    with pytest.raises(NotServed, match="does not take dtype"):
        layout_of(given)


@pytest.mark.parametrize(("dtype", "nbytes"), [("HALF", 2), ("BF16", 2), ("FP8", 1)])
@pytest.mark.parametrize(("cache_type", "sides"), [("SELF", 2), ("SELFKONLY", 1)])
def test_pools_are_laid_out_by_heads(dtype: str, nbytes: int, cache_type: str, sides: int) -> None:
    layout = layout_of(keywords(S, dtype=getattr(S.DataType, dtype), cache_type=getattr(S.CacheType, cache_type)))
    few, many = layout.pools
    assert (few.layers, many.layers) == ((1,), (0, 2))
    assert few.side_bytes == 1 * 4 * 8 * nbytes
    assert many.side_bytes == 2 * 4 * 8 * nbytes
    assert many.slot_bytes == 2 * sides * many.side_bytes
    assert many.offset_scale == 2 * sides
    assert [layout.place_of(layer) for layer in range(3)] == [(1, 0), (0, 0), (1, 1)]


def test_connectors_are_served() -> None:
    given = keywords(S, kv_connector_manager=object())
    assert layout_of(given).connector is given["kv_connector_manager"]
    del given["temp_attention_window_inputs"]
    assert layout_of(given).connector is given["kv_connector_manager"]
