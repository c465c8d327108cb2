"""Scans cannot push others out of a full tier, and reuse that comes soon is not missed."""

import random
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

import pytest

from trtllm_kvfix.native import TierIndex

from .model.tier_index import ModelTierIndex

SLOTS = 96


class Served(NamedTuple):
    found: int  # blocks that were here
    stored: int
    declined: bool


def served(index: TierIndex, blocks: list[int], known: int = 0) -> Served:
    """A request that reuses what is here, computes the rest and ends."""
    number = index.open()
    index.extend(number, blocks)
    found = index.held(number)
    claim = index.claim(number, len(blocks), known=known)
    assert claim is not None
    index.commit(claim.slots)
    index.close(number)
    return Served(found, len(claim.slots), claim.declined)


def found_share(index: TierIndex, requests: Iterable[list[int]]) -> float:
    asked = [(served(index, blocks).found, len(blocks)) for blocks in requests]
    half = asked[len(asked) // 2 :]
    return sum(found for found, _ in half) / sum(total for _, total in half)


def hot_prompts_in_a_scan(requests: int) -> Iterator[list[int]]:
    """Eight prompts that come again after more new blocks than the tier has, but not than it remembers."""
    new = count(1_000)
    for number in range(requests):
        hot = number % 24 // 3
        yield [hot, *range(100 * hot, 100 * hot + 7)] if number % 3 == 0 else [next(new) for _ in range(8)]


def conversations(requests: int) -> Iterator[list[int]]:
    """Each prompt comes twice, soon after one another."""
    new = count(1_000)
    waiting = [[next(new) for _ in range(8)] for _ in range(6)]
    for number in range(requests):
        at = number % 6
        yield waiting[at]
        if number // 6 % 2:
            waiting[at] = [next(new) for _ in range(8)]


def a_circle(requests: int) -> Iterator[list[int]]:
    """Prompts that come again in turn, with twice as many blocks as the tier has: whoever takes all finds nothing."""
    return ([100 * (number % 24) + at for at in range(8)] for number in range(requests))


def adaptive() -> TierIndex:
    return TierIndex(SLOTS, 1, admission="adaptive")


def everything() -> TierIndex:
    return TierIndex(SLOTS, 1, admission="all")


def test_a_scan_pushes_out_what_comes_back_unless_the_policy_declines_it() -> None:
    assert found_share(everything(), hot_prompts_in_a_scan(3_000)) == 0
    assert found_share(adaptive(), hot_prompts_in_a_scan(3_000)) == pytest.approx(1 / 3)


def test_the_more_of_a_circle_is_found_the_less_of_it_changes_places() -> None:
    assert found_share(everything(), a_circle(3_000)) == 0
    assert 0.3 < found_share(adaptive(), a_circle(3_000)) <= 0.5


def test_what_is_asked_for_again_and_again_outlives_what_is_asked_for_once() -> None:
    for index, survives in ((everything(), False), (adaptive(), True)):
        for blocks in hot_prompts_in_a_scan(3_000):
            served(index, blocks)
        for new in range(12):
            served(index, [-100 * new - at for at in range(1, 9)])
        assert (served(index, [7, *range(700, 707)]).found == 8) is survives


def test_the_first_reuse_is_not_missed_where_it_comes_soon() -> None:
    assert found_share(everything(), conversations(3_000)) == 0.5
    assert found_share(adaptive(), conversations(3_000)) == 0.5


def test_the_policy_follows_the_traffic() -> None:
    index = adaptive()
    for blocks in [*hot_prompts_in_a_scan(3_000), *conversations(3_000)]:
        served(index, blocks)
    assert found_share(index, conversations(600)) == 0.5
    for blocks in hot_prompts_in_a_scan(6_000):
        served(index, blocks)
    assert found_share(index, hot_prompts_in_a_scan(600)) == pytest.approx(1 / 3)


def circled() -> TierIndex:
    """A full tier that declines what is new."""
    index = adaptive()
    for blocks in a_circle(3_000):
        served(index, blocks)
    return index


def test_what_is_new_is_declined_by_a_full_tier_and_taken_by_one_with_room() -> None:
    index = circled()
    assert served(index, [-1, -2, -3]) == Served(found=0, stored=0, declined=True)
    index.drop()
    assert served(index, [-4, -5, -6]) == Served(found=0, stored=3, declined=False)


def test_what_comes_back_from_elsewhere_is_taken_though_nobody_had_asked_for_it_here() -> None:
    index = circled()
    number = index.open()
    index.extend(number, [-1, -2, -3])
    assert index.claim(number, 2).slots == []  # type: ignore[union-attr]
    claim = index.claim(number, 3, reused=True)
    assert claim is not None
    assert (claim.first, len(claim.slots), claim.declined) == (0, 3, False)


def test_a_request_does_not_ask_a_second_time_by_growing() -> None:
    """Each block that an answer fills is claimed for itself, and those before it with it."""
    index = circled()
    number = index.open()
    for end in range(1, 5):
        index.extend(number, [-end])
        claim = index.claim(number, end)
        assert claim is not None
        assert (claim.slots, claim.declined) == ([], True)


def test_what_the_gpu_has_speaks_for_nothing() -> None:
    """The tier would bring nothing of it, however often it is asked for."""
    assert served(circled(), [-1, -2, -3]).declined
    index = adaptive()
    for blocks in a_circle(3_000):
        served(index, blocks, known=len(blocks))
    assert served(index, [-1, -2, -3]) == Served(found=0, stored=3, declined=False)


@pytest.mark.parametrize("slots", [7, 20, 40])
def test_it_decides_as_the_model_does(slots: int) -> None:
    """Thousands of requests, for a decision takes 64 samples: prefixes of prompts, some again, some grown."""
    draw = random.Random(slots)
    index, model = TierIndex(slots, 1, admission="adaptive"), ModelTierIndex(slots, 1, "adaptive")
    prompts: list[list[int]] = [[]]
    modes = set[str]()
    for fresh in range(1_500):
        again = draw.random() < (0.7 if fresh % 700 < 350 else 0.2)
        prompt = draw.choice(prompts[-draw.choice([3, 12, 40]) :]) if again else []
        new = [fresh * 100 + at for at in range(draw.randrange(1, 12))]
        prompts.append(prompt := [*prompt[: draw.randrange(40)], *new])
        number, other = index.open(), model.open((None, "NoneType", None), ())
        index.extend(number, prompt)
        model.extend(other, tuple(prompt))
        assert index.held(number) == model.held(other)
        known, reused = draw.choice([0, 0, 3]), draw.random() < 0.05
        cuts = sorted({draw.randrange(len(prompt) + 1), len(prompt)})
        for end in cuts:
            claim = index.claim(number, end, known=known, reused=reused)
            expected = model.claim(other, end, known, (), reused)
            assert claim is not None
            assert expected is not None
            assert (claim.first, len(claim.slots), claim.declined) == (expected[0], len(expected[1]), model.declined)
            index.commit(claim.slots)
            model.commit(expected[1])
        index.close(number)
        model.close(other)
        assert model.admission is not None
        modes.add(model.admission.rule)
    assert modes >= {"everything", "worthier"}, "the traffic never made it choose"
