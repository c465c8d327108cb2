"""Each era declares what upstream binds: names, argument names, refusals. The tables come from upstream's source."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.bound import ERAS, load
from tests.bound.making import WINDOW, add, make_manager, make_request, name_of, unique

kvfix_bound = load()

LATE = {"C", "D"}
EVERY = set(ERAS)
PRESENT = {
    "add_sequence": EVERY - LATE,
    "add_sequence_batch": LATE,
    "allocate_pools": EVERY,
    "analyze_prefix_reuse": LATE,
    "copy_batch_block_offsets": EVERY,
    "count_reusable_blocks": {"B2"},
    "find_new_context_block": {"S", "B2"},
    "get_indexer_k_cache_pool": EVERY - {"A"},
    "get_iteration_stats": LATE,
    "get_priority_by_block_id": EVERY - {"A"},
    "get_token_count": LATE,
    "is_variable_window": EVERY - {"A"},
    "pin_blocks": EVERY,
    "refresh_blocks": EVERY - {"A"},
    "remove_sequence": EVERY,
    "reset_reuse_state": EVERY - {"A"},
    "scheduling_has_free_blocks": EVERY - {"A"},
    "store_blocks_for_reuse": EVERY,
    "store_context_blocks": EVERY,
    "store_new_block": LATE,
    "sync_transfer_manager_with_buffer_manager": EVERY - {"A"},
    "unpin_blocks_by_id": EVERY,
}
ON_DERIVED_ONLY = {"is_variable_window", "scheduling_has_free_blocks"}
REQUEST_ONLY_IN = {
    "cache_salt": set(),
    "encoder_tokens": set(),
    "estimated_reusable_tokens": LATE,
    "get_unique_tokens": EVERY - {"A", "S"},
    "py_request_id": set(),
    "set_prepopulated_prompt_len": LATE,
}
# Method, positional arguments ("request" stands for one), names of the arguments, eras that name them.
POSITIONAL = [
    ("add_sequence", (8, 4, 1, "request"), ("request_id", "input_length", "beam_width", "llm_request"), set()),
    ("add_token", (7,), ("request_id",), LATE),
    ("remove_sequence", (7, "request", False), ("request_id", "llm_request", "pin_on_release"), set()),
    ("store_context_blocks", ("request",), ("llm_request",), set()),
    ("store_blocks_for_reuse", (7, "request", False), ("request_id", "llm_request", "pin_blocks"), set()),
    ("store_new_block", ("request",), ("llm_request",), LATE),
    ("pin_blocks", (7,), ("request_id",), set()),
    ("rewind_kv_cache", (7, 0), ("request_id", "rewind_lengths"), set()),
    ("get_cache_block_ids", (7, WINDOW), ("request_id", "window_size"), set()),
    ("get_batch_cache_block_ids", ([7], WINDOW), ("request_ids", "window_size"), set()),
    ("get_last_block_id", (7,), ("request_id",), set()),
    ("get_needed_blocks_one_step", ("request", False, WINDOW), ("req", "two_steps_look_ahead", "window_size"), LATE),
    ("get_remaining_blocks_to_completion", ("request", WINDOW), ("req", "window_size"), LATE),
    ("scheduling_has_free_blocks", (1, WINDOW), ("num_required", "window_size"), EVERY),
    ("get_priority_by_block_id", (0, WINDOW), ("block_id", "window_size"), EVERY),
    ("get_token_count", (7,), ("request_id",), EVERY),
]


def test_only_d_is_inferred() -> None:
    assert [name for name in ERAS if getattr(kvfix_bound, name).inferred] == ["D"]


@pytest.mark.parametrize("method", PRESENT)
def test_presence(era: Any, method: str) -> None:
    assert hasattr(era.KVCacheManager, method) == (name_of(era) in PRESENT[method])
    assert hasattr(era.BaseKVCacheManager, method) == (
        name_of(era) in PRESENT[method] and method not in ON_DERIVED_ONLY
    )


@pytest.mark.parametrize("attribute", REQUEST_ONLY_IN)
def test_presence_on_the_request(era: Any, attribute: str) -> None:
    assert hasattr(era.LlmRequest, attribute) == (name_of(era) in REQUEST_ONLY_IN[attribute])


@pytest.mark.parametrize(("method", "arguments", "names", "named_in"), POSITIONAL, ids=[row[0] for row in POSITIONAL])
def test_argument_names_and_none(
    era: Any, method: str, arguments: tuple[Any, ...], names: tuple[str, ...], named_in: set[str]
) -> None:
    if not hasattr(era.KVCacheManager, method):
        pytest.skip("not bound in this era")
    manager = make_manager(era)
    request = make_request(era, 7, range(6))
    add(manager, request)
    if method == "remove_sequence":
        request.is_dummy_request = True
    values = [request if value == "request" else value for value in arguments]
    call = getattr(manager, method)
    for i in range(len(values)):
        with pytest.raises(TypeError):
            call(*values[:i], None, *values[i + 1 :])
    with pytest.raises(TypeError):
        call(*values[:-1])
    by_name = dict(zip(names, values, strict=True))
    if name_of(era) in named_in:
        call(**by_name)
    else:
        with pytest.raises(TypeError):
            call(**by_name)
        call(*values)


def test_constructor_refuses_unknown_and_foreign_keywords(era: Any) -> None:
    with pytest.raises(TypeError):
        make_manager(era, no_such_keyword=1)
    foreign = {"swa_context_reuse": True} if name_of(era) not in LATE else {"onboard_blocks": True}
    with pytest.raises(TypeError):
        make_manager(era, **foreign)


def test_sizes_per_layer_belong_to_s_alone(era: Any) -> None:
    wrong = "size_per_head" if name_of(era) == "S" else "size_per_head_per_layer"
    with pytest.raises(TypeError):
        make_manager(era, **{wrong: 8})


def test_managers_refuse_attributes_and_requests_take_them(era: Any) -> None:
    manager = make_manager(era)
    with pytest.raises(AttributeError):
        manager.note = 1
    request = make_request(era, 1, range(4))
    request.note = 1
    assert request.note == 1


def test_requests_of_one_era_are_strangers_in_another() -> None:
    manager = make_manager(kvfix_bound.S)
    with pytest.raises(TypeError):
        manager.add_sequence(1, 4, 1, make_request(kvfix_bound.A, 1, range(4)))


def test_unknown_ids(era: Any) -> None:
    manager = make_manager(era)
    stranger = make_request(era, 9, range(9))
    manager.remove_sequence(9, stranger, False)
    manager.store_context_blocks(stranger)
    assert manager.witness_cached() == []
    refused: list[Callable[[], Any]] = [
        lambda: manager.get_cache_block_ids(9, WINDOW),
        lambda: manager.store_blocks_for_reuse(9, stranger, False),
        lambda: manager.pin_blocks(9),
        lambda: manager.add_token(9),
    ]
    if hasattr(manager, "store_new_block"):
        refused += [lambda: manager.store_new_block(stranger), lambda: manager.get_token_count(9)]
    for call in refused:
        with pytest.raises(RuntimeError):
            call()


def test_a_living_id_and_a_full_pool_are_errors(era: Any) -> None:
    manager = make_manager(era, blocks=2)
    request = make_request(era, 1, range(5))
    add(manager, request)
    with pytest.raises(RuntimeError, match="already"):
        add(manager, request)
    with pytest.raises(RuntimeError, match="no free blocks"):
        add(manager, make_request(era, 2, range(100, 104)))


def test_several_windows_are_asserted(era: Any) -> None:
    manager = make_manager(era, blocks_per_window={16: (8, 0), WINDOW: (16, 0)}, max_attention_window_vec=[16, WINDOW])
    request = make_request(era, 1, range(9))
    for method in ("find_new_context_block", "count_reusable_blocks"):
        if hasattr(manager, method):
            with pytest.raises(RuntimeError):
                getattr(manager, method)(unique(era, range(9)), request)
    with pytest.raises(RuntimeError):
        manager.get_unique_primary_pool()


def test_unique_tokens_must_be_bound_ones(era: Any) -> None:
    manager = make_manager(era)
    request = make_request(era, 1, range(9))
    for method in ("find_new_context_block", "count_reusable_blocks", "analyze_prefix_reuse"):
        if hasattr(manager, method):
            with pytest.raises(TypeError):
                getattr(manager, method)(list(range(9)), request)
            getattr(manager, method)(unique_tokens=unique(era, range(9)), llm_request=request)


def test_keys_compare_by_identity_until_late(era: Any) -> None:
    one, other = (era.BlockKey(tokens=[1, 2]) for _ in range(2))
    assert (one == other) == (name_of(era) in LATE)
    assert len({one, other}) == (1 if name_of(era) in LATE else 2)


def test_how_pins_are_undone(era: Any) -> None:
    manager = make_manager(era)
    request = make_request(era, 1, range(9))
    add(manager, request)
    pinned = manager.store_blocks_for_reuse(1, request, True)
    if name_of(era) in {"A", "S"}:
        assert isinstance(pinned, int)
        with pytest.raises(TypeError):
            manager.unpin_blocks_by_id([pinned])
        manager.unpin_blocks_by_id(99)
    else:
        assert pinned == list(manager.get_cache_block_ids(1, WINDOW)[0])[:2]
        with pytest.raises(TypeError):
            manager.unpin_blocks_by_id(pinned[0])
        with pytest.raises(RuntimeError):
            manager.unpin_blocks_by_id([99])
    manager.unpin_blocks_by_id(pinned)


def test_early_2026_builds_of_s_list_their_pins() -> None:
    era = kvfix_bound.S
    manager = make_manager(era)
    request = make_request(era, 1, range(9))
    add(manager, request)
    era.set_pins_by_list(True)
    try:
        pinned = manager.store_blocks_for_reuse(1, request, True)
        assert len(pinned) == 2
        manager.unpin_blocks_by_id(pinned)
    finally:
        era.set_pins_by_list(False)


def test_generation_only_is_a_property_of_the_base(era: Any) -> None:
    kind = era.LlmRequestType.LLMREQUEST_TYPE_GENERATION_ONLY
    assert make_request(era, 1, range(4), llm_request_type=kind).is_generation_only_request is True
    assert make_request(era, 2, range(4)).is_generation_only_request is False
    assert "is_generation_only_request" in vars(era.GenericLlmRequest)
