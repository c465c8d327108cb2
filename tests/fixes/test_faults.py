"""A fix whose own code fails ends nothing: the server goes on, its answers are right, and the fault is seen.

A fix without places fails here. Its own test module lists them (proofs.py).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest

from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Fault, attributes_of, failing
from tests.fixes.proofs import places_of
from tests.standin.fixture import upstream
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.overlay.upstream import NIXL_ADAPTERS

ROUNDS = int(os.environ.get("TORTURE_ROUNDS", "1"))  # of traffic; 400 are 10,000 steps
EVERY = [pytest.param(fix_id, place, id=f"{fix_id}-{place}") for fix_id in FIX_IDS for place in places_of(fix_id)]


@contextmanager
def build(place: Fault) -> Iterator[None]:
    if not place.nixl:
        with standing_in(place.variant):
            yield
        return
    with upstream(place.variant, nixl=True):
        import_module("nixl")
        import_module(NIXL_ADAPTERS[0])
        yield


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize(("fix_id", "place"), EVERY)
def test_a_fault_ends_nothing_and_is_seen(fix_id: str, place: Fault, always: bool) -> None:
    before = counters.fix_faults.by_fix().get(fix_id, 0.0)
    with (
        build(place),
        attributes_of(place),
        failing(place.name, always=always) as planted,
        applied([fix_id]) as registry,
    ):
        for _ in range(1 if place.nixl else ROUNDS):  # the listener is configured once, at the start
            place.traffic(place)
        status = registry.report().of(fix_id)
    assert planted.raised > 0, f"nothing comes by {place.name}"
    assert status.first_error == f"Injected: {place.name}"
    assert counters.fix_faults.by_fix()[fix_id] - before == status.faults
    assert status.faults == 1 or always
    blown = place.at_once or (always and place.stands_down)
    assert status.word == ("stood-down" if blown else "applied")
