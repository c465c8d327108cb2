"""Loading is worth it where it is sooner over than computing, as far as both have been measured."""

import pytest

from trtllm_kvfix.offload.remote.scheduler import FAILURES_MIN
from trtllm_kvfix.offload.scheduler import PAUSE_S_MAX, Pause
from trtllm_kvfix.offload.worth import FORGET_S, Worth

GB = 10**9


def measured(tokens_per_s: float, bytes_per_s: float) -> Worth:
    worth = Worth()
    worth.note_step(0.0, int(tokens_per_s))
    worth.note_step(1.0, 0)
    worth.note_load(1.0, int(bytes_per_s), 1.0)
    return worth


@pytest.mark.parametrize(
    ("nbytes", "tokens", "waiting", "is_worth"),
    [(GB, 20_000, 0, True), (GB, 5_000, 0, False), (GB, 20_000, 3 * GB, False), (GB, 10_000, 0, True)],
)
def test_bytes_are_weighed_against_tokens(nbytes: int, tokens: int, waiting: int, is_worth: bool) -> None:
    """A second for each GB, and for each 10,000 tokens."""
    assert measured(10_000, GB).estimate(1.0, nbytes, tokens, waiting).is_worth == is_worth


def test_the_estimate_is_in_seconds() -> None:
    assert measured(10_000, GB).estimate(1.0, 3 * GB, 5_000, GB) == (4.0, 0.5)


def test_what_was_never_measured_is_loaded() -> None:
    assert Worth().estimate(0.0, GB, 1, 0).is_worth
    worth = Worth()
    worth.note_load(0.0, 1, 1.0)
    assert worth.estimate(0.0, GB, 1, 0).is_worth


def test_a_slow_store_is_tried_again_in_the_end() -> None:
    worth = measured(10_000, GB / 8)
    assert not worth.estimate(1.0, GB, 10_000, 0).is_worth
    assert not worth.estimate(1.0 + 2 * FORGET_S, GB, 10_000, 0).is_worth
    assert worth.estimate(1.0 + 3 * FORGET_S, GB, 10_000, 0).is_worth


def test_steps_that_say_nothing_of_prefill_are_left_out() -> None:
    worth = Worth()
    for began, tokens in ((0.0, 10), (1.0, 1000), (11.0, 1000), (11.0, 1000)):  # few, waited, no time
        worth.note_step(began, tokens)
    assert worth.tokens_per_s is None
    worth.note_step(12.0, 0)
    assert worth.tokens_per_s == 1000


def test_measurements_are_averaged() -> None:
    worth = measured(10_000, GB)
    worth.note_load(2.0, 2 * GB, 1.0)
    assert worth.bytes_per_s is not None and GB < worth.bytes_per_s < 2 * GB


def test_a_store_that_does_not_answer_is_left_alone_for_longer_and_longer() -> None:
    pause, now = Pause(FAILURES_MIN), 0.0
    for _ in range(FAILURES_MIN - 1):
        pause.failed(now)
        assert pause.is_over(now)
    lengths = []
    for _ in range(10):
        pause.failed(now)
        assert not pause.is_over(now)
        length = next(seconds for seconds in range(1, 100) if pause.is_over(now + seconds))
        lengths.append(length)
        now += length
    assert lengths == sorted(lengths) and lengths[-1] == PAUSE_S_MAX
    pause.succeeded()
    pause.failed(now)
    assert pause.is_over(now)
