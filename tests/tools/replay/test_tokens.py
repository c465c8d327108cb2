"""Token values: equal exactly where the trace says so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_kvfix.native import ReplayRequests
from trtllm_kvfix.tools.replay.tokens import PROMPT_BASE, PROMPT_SPAN, TokenBook
from trtllm_kvfix.tools.replay.trace import TraceRequest


def hashed(length: int, *ids: int, answer: int = 0) -> TraceRequest:
    return TraceRequest(1, length, answer, hash_ids=np.array(ids, np.int64))


def test_an_id_spells_the_same_tokens_wherever_it_stands() -> None:
    book = TokenBook([hashed(1000, 5, 9), hashed(700, 9, 2**62)])
    first, second = book.prompt(0), book.prompt(1)
    assert (len(first), len(second)) == (1000, 700)
    assert (first[512:] == second[:488]).all()


@given(st.lists(st.integers(0, 2**63 - 1), unique=True, min_size=2, max_size=40), st.sampled_from([1, 16, 512]))
def test_different_ids_differ_in_every_position(ids: list[int], tokens_per_hash_id: int) -> None:
    book = TokenBook([hashed(tokens_per_hash_id, one) for one in ids], tokens_per_hash_id)
    prompts = np.stack([book.prompt(index) for index in range(len(ids))])
    for column in prompts.T:
        assert len(set(column.tolist())) == len(ids)


def test_ids_keep_apart_when_their_tokens_no_longer_fit_the_range() -> None:
    """The 4 million ids of this trace spell twice as many tokens as there are values."""
    ids = np.arange(4_000_000)
    book = TokenBook([TraceRequest(1, 512 * len(ids), 0, hash_ids=ids), hashed(512, 0), hashed(512, 3_999_999)])
    assert (book.prompt(1) != book.prompt(2)).all()
    assert book.prompt(2).min() >= 0


def test_invented_answers_repeat_nothing_and_stay_clear_of_prompts() -> None:
    requests = [hashed(512, 1, answer=300), hashed(512, 2, answer=200)]
    book = TokenBook(requests)
    answers = [*book.answer(0).tolist(), *book.answer(1).tolist()]
    assert len(set(answers)) == 500
    assert not set(answers) & set(book.prompt(0).tolist())
    assert book.answer_start.tolist() == [0, 300, 500]


def test_answers_and_prompts_of_the_trace_are_used_as_they_are() -> None:
    tokens, answer = np.array([7, 8, 9], np.int32), np.array([4, 5], np.int32)
    book = TokenBook([hashed(512, 1, answer=3), TraceRequest(2, 3, 2, tokens=tokens, output_tokens=answer)])
    assert book.prompt(1) is tokens
    assert book.answer(1).tolist() == [4, 5]


def test_answers_that_no_memory_holds_are_not_made_before_they_are_asked_for() -> None:
    book = TokenBook([hashed(512, 1, answer=2**31 - 1)] * 10_000 + [hashed(512, 1, answer=2)])
    first = book.answer(10_000)
    assert first.dtype == np.int32
    assert (np.diff(first) == 1).all()


@given(
    symbols=st.lists(st.integers(0, 99), min_size=1, max_size=9),
    tokens_per_symbol=st.sampled_from([1, 7, 64, 250]),
    missing=st.integers(0, 249),
)
def test_the_scheduler_spells_as_the_book_does(symbols: list[int], tokens_per_symbol: int, missing: int) -> None:
    """Uses few values, so that symbols wrap around, and more than once."""
    length = tokens_per_symbol * len(symbols) - missing % tokens_per_symbol
    native = spelled(ReplayRequests(1000, 100, tokens_per_symbol), symbols, length)
    expected = [1000 + (symbol + k) % 100 for symbol in symbols for k in range(tokens_per_symbol)]
    assert native.prompt(0) == expected[:length]


def test_the_scheduler_has_the_prompts_of_the_book() -> None:
    book = TokenBook([hashed(1000, 5, 9), hashed(700, 9, 2**62)])
    native = ReplayRequests(PROMPT_BASE, PROMPT_SPAN, 512)
    for index, length in enumerate((1000, 700)):
        spelled(native, book.ids(index), length)
        assert native.prompt(index) == book.prompt(index).tolist()


@pytest.mark.parametrize(("symbols", "length"), [([1, 2], 15), ([1, 100], 14), ([-1], 3), ([], 1)])
def test_symbols_that_do_not_spell_the_prompt_are_refused(symbols: list[int], length: int) -> None:
    native = ReplayRequests(1000, 100, 7)
    with pytest.raises(ValueError, match=rf"do not spell a prompt of {length} tokens"):
        spelled(native, symbols, length)
    with pytest.raises(IndexError):
        native.prompt(0)


def spelled(native: ReplayRequests, symbols: object, length: int) -> ReplayRequests:
    native.add(symbols, is_spelled=True, prompt_length=length, answer=[], timestamp_ms=0, blocks_needed=1)
    return native
