"""A touch is judged by what the program has observed, not by whether the device happened to be done."""

import re
from pathlib import Path

import pytest

from watch.tests.conftest import Outcome, Watch
from watch.tests.orders import CLEAN, LARGE, MAYBE, RACY, ROUNDS


def ran(watch: Watch, name: str, *options: str) -> Outcome:
    return watch("watch.tests.orders", name, options=options, HOSTRACE_GATES="0")


@pytest.mark.parametrize("name", RACY)
def test_what_nobody_waited_for_is_reported_in_each_round(watch: Watch, name: str) -> None:
    done = ran(watch, name)
    assert done.status == 1, done.said
    assert done.times("unordered") == ROUNDS, done.said
    assert done.times("races") == done.times("possible") == 0
    assert "UNORDERED 1: The host" in done.said


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_ordered_is_silent(watch: Watch, name: str) -> None:
    done = ran(watch, name)
    assert done.status == 0, done.said
    assert done.times("races") == done.times("unordered") == done.times("possible") == 0, done.said


@pytest.mark.parametrize("name", LARGE)
def test_pages_of_two_megabytes_are_protected_as_a_whole(watch: Watch, name: str) -> None:
    free = re.search(r"HugePages_Free:\s+(\d+)", Path("/proc/meminfo").read_text())
    if free is None or int(free[1]) < len(LARGE):
        pytest.skip("no large pages are set aside here (vm.nr_hugepages)")
    done = ran(watch, name)
    inside = name.startswith("inside")
    assert (done.times("unordered"), done.times("races")) == (ROUNDS if inside else 0, 0), done.said
    assert done.report["numbers"]["dropped"] == 0
    assert inside or done.report["numbers"]["steps"]


@pytest.mark.parametrize("name", MAYBE)
def test_what_may_be_ordered_by_unknown_means_is_possible(watch: Watch, name: str) -> None:
    done = ran(watch, name)
    assert (done.status, done.times("possible")) == (0, ROUNDS), done.said
    assert done.times("races") == done.times("unordered") == 0


def test_only_observed_reports_what_the_device_had_not_finished(watch: Watch) -> None:
    done = ran(watch, "read_4_behind_an_idle_stream", "--only-observed")
    assert (done.status, done.times("unordered")) == (0, 0)


def test_a_program_that_never_waits_is_told_what_was_let_go(watch: Watch) -> None:
    done = ran(watch, "never_waits")
    assert done.report["numbers"]["let_go"] > 0
    assert done.report["numbers"]["dropped"] == 0
    assert "left the books before the program had observed that" in done.said


def test_a_held_thread_is_not_held_where_the_device_waits_for_the_host(watch: Watch) -> None:
    done = ran(watch, "copy_waits_for_a_value", "--hold")
    assert (done.status, done.report["numbers"]["gave_up"]) == (0, 0)
    assert done.report["numbers"]["unbegun"] == ROUNDS


def test_a_promise_that_drivers_break_is_named(watch: Watch) -> None:
    done = ran(watch, "pageable_source_that_the_driver_promised_to_have_read")
    assert "The host changed it after a copy that the driver promised to have read by then" in done.said
    assert "remedy: The program is right (DURING_API_CALL)" in done.said
    assert "noticed by thread" in done.said
    assert done.report["numbers"]["digested"] == ROUNDS


def test_memory_that_goes_before_a_wait_is_said_to_have_gone(watch: Watch) -> None:
    done = ran(watch, "pageable_source_that_goes")
    assert "The host gave it back, and nothing had waited for a copy that reads it" in done.said
    assert "somewhere from byte 0 on of 262,144 bytes" in done.said
    assert "20 uses watched" in done.said
