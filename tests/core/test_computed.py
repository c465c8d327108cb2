"""Nothing is promised before it is computed: reserved positions say nothing about their contents."""

import pytest

from trtllm_kvfix.native import SequenceRequest

from .scenes import BLOCK, begin, manager, prompt, reusable


def test_growth_before_the_prompt_is_computed_stores_nothing() -> None:
    m = manager(primary=8)
    m.add_sequence(SequenceRequest(1, prompt(1, 2 * BLOCK)))
    m.add_token(1, 1, [7])  # upstream reserves the first generated token right after admission
    m.remove_sequence(1)
    assert reusable(m, prompt(1, 2 * BLOCK)) == 0


def test_growth_before_the_prompt_is_computed_keeps_the_blocks_that_prefill_needs() -> None:
    m = manager(primary=8, window_sizes=[BLOCK])
    m.add_sequence(SequenceRequest(1, prompt(1, 4 * BLOCK)))
    m.add_token(1)
    m.add_token(1)
    assert -1 not in m.get_cache_block_ids(1, BLOCK)[0]
    m.store_context_blocks(1, 2 * BLOCK)
    assert m.get_cache_block_ids(1, BLOCK)[0][:2].count(-1) == 1, "as far as the chunk has come"
    assert reusable(m, prompt(1, 4 * BLOCK)) == 2 * BLOCK


def test_a_position_that_is_reserved_and_not_computed_ends_what_is_stored() -> None:
    m = manager(primary=8, partial_reuse=False)
    begin(m, 1, prompt(1, BLOCK + 1))
    m.add_token(1, BLOCK - 1, prompt(1, 2 * BLOCK)[BLOCK + 1 :], computed=BLOCK + 1)
    m.remove_sequence(1, computed=2 * BLOCK - 1)
    assert reusable(m, prompt(1, 2 * BLOCK)) == BLOCK
    begin(m, 2, prompt(1, BLOCK + 1))
    m.add_token(2, BLOCK - 1, prompt(1, 2 * BLOCK)[BLOCK + 1 :])
    m.remove_sequence(2, computed=2 * BLOCK)
    assert reusable(m, prompt(1, 2 * BLOCK)) == 2 * BLOCK


def test_what_has_been_computed_stays_so_until_it_is_rewound() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, BLOCK))
    m.add_token(1, 4, prompt(1, 2 * BLOCK)[BLOCK:])
    m.add_token(1, 0, computed=2 * BLOCK)
    m.add_token(1, 0, computed=1)
    m.add_token(1, 0)
    m.rewind_kv_cache(1, 2)
    m.add_token(1, 2, [70, 71])
    m.remove_sequence(1)
    assert reusable(m, prompt(1, 2 * BLOCK)) == BLOCK + 2
    assert reusable(m, [*prompt(1, BLOCK + 2), 70, 71]) == BLOCK + 2


@pytest.mark.parametrize("computed", [2 * BLOCK + 1, 2**32 - 1, 2**40, -1])
def test_more_than_is_there_cannot_have_been_computed(computed: int) -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, 2 * BLOCK))
    digest = m.digest()
    with pytest.raises(ValueError, match="computed"):
        m.add_token(1, 4, computed=computed)
    with pytest.raises(ValueError, match="computed"):
        m.remove_sequence(1, computed=computed)
    with pytest.raises(ValueError, match="computed"):
        m.add_tokens([1], [4], computed=[computed])
    assert m.digest() == digest


def test_growth_stores_no_block_that_could_still_be_rewound() -> None:
    m = manager(primary=8)
    begin(m, 1, prompt(1, BLOCK))
    m.add_token(1, BLOCK, prompt(1, 2 * BLOCK)[BLOCK:])
    m.add_token(1, 0, computed=2 * BLOCK)
    m.store_context_blocks(1, BLOCK)
    assert reusable(m, prompt(1, 2 * BLOCK)) == BLOCK
    m.rewind_kv_cache(1, BLOCK)
