"""Rows of a table go into one of the caller's own, by their first planes, or nothing does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_kvfix.native import copy_pages

POOLS, ROWS = 2, 5
UNTOUCHED = -7


def table(rows: int, blocks: int, pools: int = POOLS) -> Any:
    return np.arange(pools * rows * 2 * blocks, dtype=np.int32).reshape(pools, rows, 2, blocks)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=ROWS + 1), blocks=st.sampled_from([1, 3, 4, 17, 64]))
def test_the_rows_lie_in_their_order_and_nothing_else_is_written(rows: list[int], blocks: int) -> None:
    live, own = table(ROWS, blocks), np.full((POOLS, ROWS + 2, 2, blocks), UNTOUCHED, np.int32)
    copy_pages(live, rows, own)
    expected = np.full_like(own, UNTOUCHED)
    expected[:, : len(rows), 0] = live[:, rows, 0]
    np.testing.assert_array_equal(own, expected)


@pytest.mark.parametrize(
    ("rows", "own", "why"),
    [
        ([0, ROWS], table(ROWS, 4), f"row {ROWS} is out of a table of {ROWS} rows"),
        ([-1], table(ROWS, 4), "-1"),
        (range(3), table(2, 4), "3 rows .* 2 rows"),
        ([0], table(ROWS, 5), "4 blocks .* 5 blocks"),
        ([0], table(ROWS, 4, pools=1), "2 pools .* 1 pools"),
        ([0], table(ROWS, 4).astype(np.int64), "int64"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_copied(rows: Any, own: Any, why: str) -> None:
    before = own.copy()
    with pytest.raises(ValueError, match=why):
        copy_pages(table(ROWS, 4), rows, own)
    np.testing.assert_array_equal(own, before)


def test_a_table_that_may_not_be_written_is_refused() -> None:
    own = table(ROWS, 4)
    own.flags.writeable = False
    with pytest.raises(ValueError, match="expected int32"):
        copy_pages(table(ROWS, 4), [0], own)
