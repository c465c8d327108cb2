"""A fix whose own code fails ends nothing: the server goes on, its answers are right, and the fault is seen.

A fix without places fails here. Its own test module lists them (proofs.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import pytest

from tests.fixes.applied import applied, standing_in
from tests.fixes.faults import Place, attributes_of, failing
from tests.fixes.proofs import places_of
from tests.standin.fixture import upstream
from trtllm_kvfix.fix_ids import FIX_IDS
from trtllm_kvfix.fixes.nixl_listener.record import ADAPTERS
from trtllm_kvfix.metrics import counters

# These fixes have loops of their own in which their places fail.
ELSEWHERE = {
    "batched-admission": "test_batched_admission.test_a_fault_of_ours_leaves_upstreams_batch",
    "token-budget": "test_resource_manager.test_a_fault_of_ours_leaves_upstreams_batch",
    "computed-blocks": "test_computed_blocks.test_a_server_outlives_a_fault_in_what_is_observed",
    "graph-inputs": "test_graph_inputs.test_after_repeated_faults_it_stands_down_to_the_wait_for_the_stream",
}

EVERY = [
    pytest.param(fix_id, place, id=f"{fix_id}-{place}")
    for fix_id in FIX_IDS
    if fix_id not in ELSEWHERE
    for place in places_of(fix_id)
]


def test_every_fix_is_made_to_fail() -> None:
    assert all(places_of(fix_id) for fix_id in FIX_IDS if fix_id not in ELSEWHERE)
    for path in ELSEWHERE.values():
        module, _, function = path.partition(".")
        assert callable(getattr(import_module(f"tests.fixes.{module}"), function))


@contextmanager
def build(place: Place) -> Iterator[None]:
    if not place.nixl:
        with standing_in(place.variant):
            yield
        return
    with upstream(place.variant, nixl=True):
        import_module("nixl")
        import_module(ADAPTERS[0])
        yield


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize(("fix_id", "place"), EVERY)
def test_a_fault_ends_nothing_and_is_seen(fix_id: str, place: Place, always: bool) -> None:
    before = counters.fix_faults.by_fix().get(fix_id, 0.0)
    with (
        build(place),
        attributes_of(place),
        failing(place.name, always=always) as planted,
        applied([fix_id]) as registry,
    ):
        place.traffic(place)
        status = registry.report().of(fix_id)
    assert planted.raised > 0, f"nothing comes by {place.name}"
    assert status.first_error == f"Injected: {place.name}"
    assert counters.fix_faults.by_fix()[fix_id] - before == status.faults
    assert status.faults == 1 or always
    blown = place.at_once or (always and place.stands_down)
    assert status.word == ("stood-down" if blown else "applied")
