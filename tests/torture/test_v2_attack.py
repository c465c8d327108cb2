"""V2 under attack: whatever ends, moves or fails, no batch reads a page that is not its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from tests.fixes.applied import applied
from tests.fixes.faults import Fault, attributes_of, failing
from tests.fixes.proofs import places_of
from tests.torture.engines import SEED, needed
from tests.torture.test_engines import faults
from tests.torture.v2_attack import HAPPENS, STEPS, Attack, Way, attacked
from tests.torture.v2_books import OurLevels

HERE = f"TORTURE_SEED={SEED}"
STAGING = "staged-offsets-v2"
TARGETS = [
    Way("B"),
    Way("B2"),
    Way("C"),
    Way("C", overlap=False),
    Way("F", awaited=False),
    Way("F", awaited=False, by_layer=True),
    Way("F", awaited=False, trim=True),
]
DRAFTS = [Way("F", draft=True), Way("F", draft=True, by_layer=True), Way("F", draft=True, trim=True)]
AWAITED = [Way("D"), *(Way("F", overlap=overlap, trim=trim) for overlap in (True, False) for trim in (False, True))]
FENCED = {"B", "B2", "C"}  # there a fix brings the wait for all inputs, also of the plain loop
FAULTS = [
    *places_of(STAGING),
    *(place for place in places_of("input-copy-fence") if place.variant in FENCED),
]


def require_right(attack: Attack) -> None:
    assert attack.corrupt_tables == [], HERE
    assert attack.contents.wrong == [], HERE
    assert attack.contents.reads > 0 and attack.leftovers() == [], HERE


@pytest.mark.parametrize("way", [*TARGETS, *DRAFTS], ids=str)
def test_without_the_fixes_tables_arrive_torn(way: Way) -> None:
    with way.build(), attacked(way, SEED) as attack:
        attack.run(60)
        assert attack.corrupt_tables, HERE
        assert way.draft or attack.contents.wrong, HERE


@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_upstream_waits_a_request_that_fails_behind_its_launch_tears_a_table(way: Way) -> None:
    """A cache that is closed rewrites its row. The wait for the launch comes later."""
    with way.build(), attacked(way, SEED) as attack:
        attack.run(100)
        assert attack.corrupt_tables, HERE
        assert attack.contents.wrong, HERE


@pytest.mark.parametrize("way", AWAITED, ids=str)
def test_where_upstream_waits_and_none_fails_a_target_alone_is_right(way: Way) -> None:
    with way.build(), attacked(way, SEED, failing=0) as attack:
        attack.run()
        require_right(attack)
        assert attack.server.witness.corruptions == [], HERE


@pytest.mark.parametrize("way", [*TARGETS, *DRAFTS, *AWAITED], ids=str)
def test_with_all_fixes_nothing_is_wrong(way: Way) -> None:
    with way.build(), applied(needed(way.variant)) as registry, attacked(way, SEED) as attack:
        attack.run(until=HAPPENS)
        require_right(attack)
        assert way.variant not in FENCED or attack.server.witness.corruptions == [], HERE
        assert faults(registry) == []
        assert HAPPENS - attack.did.keys() == set(), HERE


@pytest.mark.parametrize("way", [*TARGETS, *DRAFTS], ids=str)
def test_the_staging_alone_keeps_tables_right(way: Way) -> None:
    """Without the fence, which waits for every input copy."""
    with way.build(), applied([STAGING]), attacked(way, SEED) as attack:
        attack.run()
        require_right(attack)


@contextmanager
def pages_that_do_not_come() -> Iterator[None]:
    """A level keeps nothing."""
    with mock.patch.object(OurLevels, "take_moves", return_value=[]):
        yield


def test_the_judge_sees_a_page_that_was_not_moved() -> None:
    way = Way("C")
    with way.build(), applied(needed("C")), pages_that_do_not_come(), attacked(way, SEED) as attack:
        attack.run()
        assert attack.contents.wrong and attack.corrupt_tables == [], HERE


def test_a_load_that_outlives_its_request_writes_into_pages_of_others() -> None:
    """V2 is wrong there without us, and with us, until upstream's newest lets the load end first."""
    way = Way("F")
    with way.build(), applied(needed("F")), attacked(way, SEED, loads_outlive=True) as attack:
        attack.run()
        assert attack.contents.wrong and attack.corrupt_tables == [], HERE


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("place", FAULTS, ids=str)
def test_a_fault_of_ours_at_any_place_costs_time_alone(place: Fault, always: bool) -> None:
    cache = place.llm_args.get("kv_cache_config", {})
    by_layer = cache.get("enable_swa_scratch_reuse", False)
    trim = place.variant == "F"  # it has the place of `copy_filter`
    way = Way(place.variant, draft=place.draft, by_layer=by_layer, trim=trim)
    with (
        way.build(),
        attributes_of(place),
        failing(place.name, always=always) as planted,
        applied(needed(place.variant)) as registry,
        attacked(way, SEED) as attack,
    ):
        attack.run(STEPS // 6)
        require_right(attack)
        assert way.variant not in FENCED or attack.server.witness.corruptions == [], HERE
        assert planted.raised > 0, f"nothing comes by {place.name}"
        assert f"Injected: {place.name}" in faults(registry)  # of the first fix that met it
