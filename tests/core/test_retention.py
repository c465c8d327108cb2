"""Eviction takes the lowest priority first, then the least recently used, leaves before parents; a duration demotes."""

import pytest

from trtllm_kvfix.native import Retention, SequenceRequest

from .scenes import BLOCK, begin, kinds, leave_behind, manager, prompt, reusable, run_transfers


def keep(priority: int, duration_ms: int | None = None) -> Retention:
    return Retention([(0, None, priority, duration_ms)], priority, duration_ms)


def survivors(m: object, families: range) -> list[int]:
    return [family for family in families if reusable(m, prompt(family, BLOCK)) == BLOCK]  # type: ignore[arg-type]


def test_the_lowest_priority_goes_first() -> None:
    m = manager(primary=4)
    for family, priority in ((1, 60), (2, 10), (3, 80), (4, 35)):
        leave_behind(m, family, prompt(family, BLOCK), retention=keep(priority))
    for request_id, expected in ((11, [1, 3, 4]), (12, [1, 3]), (13, [3])):
        m.add_sequence(SequenceRequest(request_id, prompt(request_id, BLOCK)))
        assert survivors(m, range(1, 5)) == expected


def test_within_a_priority_the_least_recently_used_goes_first() -> None:
    m = manager(primary=4)
    for family in (1, 2, 3):
        leave_behind(m, family, prompt(family, BLOCK))
    leave_behind(m, 4, [*prompt(1, BLOCK), 5])
    m.add_sequence(
        SequenceRequest(11, prompt(11, BLOCK))
    )  # the incomplete block of 4 is newer than 2 and 3, yet 2 is the oldest
    assert survivors(m, range(1, 4)) == [1, 3]


def test_leaves_go_before_their_parents_even_with_a_higher_priority() -> None:
    m = manager(primary=3)
    ranges = [(0, BLOCK, 0, None), (BLOCK, None, 100, None)]
    leave_behind(m, 1, prompt(1, 3 * BLOCK), retention=Retention(ranges))
    for left in (2, 1, 0):
        m.add_sequence(SequenceRequest(10 + left, prompt(10 + left, BLOCK)))
        assert reusable(m, prompt(1, 3 * BLOCK)) == left * BLOCK


def test_low_priorities_are_dropped_and_others_are_offloaded() -> None:
    m = manager(primary=2, host=4, offload_priority_min=50)
    leave_behind(m, 1, prompt(1, BLOCK), retention=keep(49))
    leave_behind(m, 2, prompt(2, BLOCK), retention=keep(50))
    m.add_sequence(SequenceRequest(3, prompt(3, 2 * BLOCK)))
    assert kinds(run_transfers(m)) == ["offload"]
    assert survivors(m, range(1, 3)) == [2]


def test_host_room_goes_by_priority_too() -> None:
    m = manager(primary=1, host=2)
    for family, priority in ((1, 90), (2, 40), (3, 60), (4, 35)):
        leave_behind(m, family, prompt(family, BLOCK), retention=keep(priority))
    assert survivors(m, range(1, 5)) == [1, 3, 4]


def test_a_duration_demotes_once_its_time_has_come() -> None:
    m = manager(primary=2)
    m.advance_time(1000)
    leave_behind(m, 1, prompt(1, BLOCK), retention=keep(90, duration_ms=50))
    leave_behind(m, 2, prompt(2, BLOCK), retention=keep(60))
    m.advance_time(1049)
    m.add_sequence(SequenceRequest(3, prompt(3, 1)))
    assert survivors(m, range(1, 3)) == [1]
    m.remove_sequence(3, store=False)
    leave_behind(m, 2, prompt(2, BLOCK), retention=keep(60))
    m.advance_time(1050)
    m.add_sequence(SequenceRequest(4, prompt(4, 1)))
    assert survivors(m, range(1, 3)) == [2]


def test_the_clock_starts_when_the_block_is_let_go_and_stops_when_it_is_claimed() -> None:
    m = manager(primary=3)
    begin(m, 1, prompt(1, BLOCK), retention=keep(90, duration_ms=50))
    m.advance_time(100)
    m.remove_sequence(1)
    m.advance_time(149)
    m.add_sequence(SequenceRequest(2, [*prompt(1, BLOCK), 5]))  # claims it: the clock is void
    m.advance_time(1000)
    m.remove_sequence(2, store=False)
    leave_behind(m, 3, prompt(3, BLOCK), retention=keep(60))
    m.advance_time(1049)
    m.add_sequence(SequenceRequest(4, prompt(4, 2 * BLOCK)))
    assert survivors(m, range(1, 4)) == [1]


def test_a_claim_takes_the_new_range_and_keeps_the_old_without_one() -> None:
    m = manager(primary=3)
    leave_behind(m, 1, prompt(1, BLOCK), retention=keep(90))
    leave_behind(m, 2, prompt(2, BLOCK), retention=keep(90))
    leave_behind(m, 3, [*prompt(1, BLOCK), 5], retention=keep(0))
    leave_behind(m, 4, [*prompt(2, BLOCK), 5])
    m.add_sequence(SequenceRequest(5, prompt(5, 2 * BLOCK)))
    assert survivors(m, range(1, 3)) == [2]


def test_time_never_goes_back() -> None:
    m = manager(primary=1)
    m.advance_time(10)
    m.advance_time(10)
    with pytest.raises(ValueError, match="9"):
        m.advance_time(9)
