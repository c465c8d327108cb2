"""Everything about the two managers that can be read without changing them."""

from typing import TYPE_CHECKING

import numpy as np

from trtllm_kvfix import native

from .model.conservation import tier_counts
from .model.values import TIERS

if TYPE_CHECKING:
    from .pair import Pair

UNTOUCHED = -7
SCALE, V_OFFSET = 3, 1000


def compare_everything(pair: "Pair") -> None:
    digest = pair.core.digest()
    live, suspended = pair.model.live(), pair.model.suspended()
    compare_blocks(pair, live)
    for request_id in live:
        compare_offsets(pair, request_id)
    for request_id in suspended:
        assert pair.core.blocks_to_resume(request_id) == pair.model.blocks_to_resume(request_id)
    for request_id in live + suspended:
        expected = vars(pair.model.get_request_stats(request_id))
        actual = pair.core.get_request_stats(request_id)
        assert {field: getattr(actual, field) for field in expected} == expected
        compare_answers(pair, request_id)
    for some in (live, live[::2]):
        assert pair.core.free_blocks_without(some) == pair.model.free_blocks_without(some)
    compare_stats(pair, pair.core.get_kv_cache_stats())
    assert pair.core.digest() == digest, "reading changed something"


def compare_blocks(pair: "Pair", request_ids: list[int]) -> None:
    for w, window in enumerate(pair.model.state.windows):
        tables = pair.core.get_batch_cache_block_ids(request_ids, window.shape.size)
        for request_id, table in zip(request_ids, tables, strict=True):
            assert table == pair.core.get_cache_block_ids(request_id, window.shape.size)
            expected = pair.model.get_cache_blocks(request_id, w)
            assert [len(row) for row in table] == [len(row) for row in expected]
            for row, core_row in zip(expected, table, strict=True):
                for block, block_id in zip(row, core_row, strict=True):
                    assert (block is None) == (block_id == -1)
                    if block is not None:
                        pair.names.learn_block(block, block_id)


def compare_answers(pair: "Pair", request_id: int) -> None:
    model, core = pair.model, pair.core
    assert core.get_token_count(request_id) == model.get_token_count(request_id)
    for w, window in enumerate(model.state.windows):
        removed = core.get_num_front_blocks_removed(request_id, window.shape.size)
        assert removed == model.get_num_front_blocks_removed(request_id, w)
    for block in model.any_sequence(request_id).held_blocks():
        assert core.get_priority_by_block_id(pair.names.id_of(block)) == block.priority


def compare_offsets(pair: "Pair", request_id: int) -> None:
    """One row above, one below and one column to the right must stay as they were."""
    windows = pair.model.state.windows
    rows = [pair.model.get_cache_blocks(request_id, w) for w in range(len(windows))]
    beams, length = len(rows[0]), len(rows[0][0])
    table = np.full((len(windows), beams + 2, 2, length + 1), UNTOUCHED, dtype=np.int32)
    pair.core.copy_batch_block_offsets(table, [request_id], beams, 1, scale=SCALE, v_offset=V_OFFSET)
    assert (table[:, 0] == UNTOUCHED).all() and (table[:, -1] == UNTOUCHED).all()
    assert (table[..., -1] == UNTOUCHED).all()
    for w, window in enumerate(windows):
        for beam, row in enumerate(rows[w]):
            for position, block in enumerate(row):
                k, v = (int(plane) for plane in table[w, beam + 1, :, position])
                if block is None:
                    assert (k, v) == (-1, -1)
                    continue
                assert v == k + V_OFFSET and k % SCALE == 0
                pair.names.learn_slot(window, "primary", block.slots["primary"], k // SCALE)


def compare_stats(pair: "Pair", stats: native.KvCacheStats) -> None:
    state = pair.model.state
    assert [w.window_size for w in stats.windows] == [w.shape.size for w in state.windows]
    for window, actual in zip(state.windows, stats.windows, strict=True):
        for tier in TIERS:
            seen = getattr(actual, tier)
            expected = {"blocks": window.capacity(tier), **tier_counts(window, tier)}
            assert {field: getattr(seen, field) for field in expected} == expected, tier
    kept = [sum(seq.rooms[w].kept for seq in state.sequences.values()) for w in range(len(state.windows))]
    there = [window.free("primary") + len(window.cached()) for window in state.windows]
    assert [w.kept for w in stats.windows] == [min(each) for each in zip(kept, there, strict=True)]
    primary = [tier_counts(window, "primary") for window in state.windows]
    assert stats.max_num_blocks == sum(window.capacity("primary") for window in state.windows)
    assert stats.free_num_blocks == sum(counts["free"] + counts["cached"] for counts in primary)
    assert stats.used_num_blocks == sum(counts["owned"] + counts["in_flight"] for counts in primary)
    assert stats.tokens_per_block == state.config.tokens_per_block
    assert stats.sequences == len(pair.model.live())
    assert stats.sequences_suspended == len(pair.model.suspended())
    for name in ("total", "iteration", "current"):
        compare_counters(getattr(stats, name), getattr(state, name), name)
    reused, missed = state.total.get("blocks_reused", 0), state.total.get("blocks_missed", 0)
    assert stats.cache_hit_rate == (reused / (reused + missed) if reused + missed else 0.0)


def compare_counters(actual: native.CacheCounters, expected: dict[str, int], name: str) -> None:
    fields = [field for field in dir(actual) if field.startswith(("blocks_", "tokens_")) or field == "requests"]
    assert {f: getattr(actual, f) for f in fields} == {f: expected.get(f, 0) for f in fields}, name
