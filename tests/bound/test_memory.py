"""Tables, pools, and the record of calls."""

from typing import Any

import numpy as np
import pytest

from tests.bound import load
from tests.bound.making import WINDOW, add, make_manager, make_request

kvfix_bound = load()


def test_offsets_fill_rows_and_leave_the_rest(era: Any) -> None:
    manager = make_manager(era)
    add(manager, make_request(era, 1, range(5)), make_request(era, 2, range(50, 59)))
    table = np.full((1, 4, 2, 16), -7, dtype=np.int32)
    manager.copy_batch_block_offsets(table, [1, 2], 1, 1)
    slots = np.array(manager.witness_slots(2, WINDOW)[0])
    assert table[0, 2, 0, :4].tolist() == [*(slots * 4), -7]
    assert table[0, 2, 1, :4].tolist() == [*(slots * 4 + 1), -7]
    assert (table[0, [0, 3]] == -7).all()
    for wrong in (table.astype(np.int64), table[:, ::2]):
        with pytest.raises(RuntimeError):
            manager.copy_batch_block_offsets(wrong, [1], 1, 0)


def test_pools_come_from_the_factory(era: Any) -> None:
    made: list[tuple[tuple[int, ...], str, bool]] = []

    def factory(shape: tuple[int, ...], dtype: str, pinned: bool) -> Any:
        made.append((shape, dtype, pinned))
        return np.zeros(shape, dtype)

    kvfix_bound.set_tensor_factory(factory)
    try:
        manager = make_manager(era, blocks=4, host=2)
        assert manager.get_block_pool_pointers() is None
        manager.allocate_pools(False)
        pool = manager.get_unique_primary_pool()
        assert manager.get_block_pool_pointers()[0, 0] == pool.ctypes.data
        assert manager.get_layer_to_pool_mapping().tolist() == [[0, 0], [0, 1]]
        assert np.shares_memory(manager.get_primary_pool_data(1), pool)
        assert made[:2] == [((4, 2, 2, 64), "float16", False), ((2, 2, 2, 64), "float16", True)]
        assert manager.get_kv_cache_stats().allocated_bytes == pool.nbytes
        manager.release_pools()
        assert manager.get_kv_cache_stats().allocated_bytes == 0
    finally:
        kvfix_bound.set_tensor_factory(None)


def test_calls_are_recorded_in_order(era: Any) -> None:
    manager = make_manager(era)
    request = make_request(era, 1, range(5))
    add(manager, request)
    manager.witness_record(False)
    manager.store_context_blocks(request)
    manager.witness_record(True)
    manager.remove_sequence(1, request, False)
    names = [name for name, _ in manager.witness_calls()]
    assert names[-1] == "remove_sequence" and "store_context_blocks" not in names
    assert manager.witness_calls()[-1][1] == "(1, LlmRequest(1), False)"
