"""Managers that derive from the V1 class get the fixes by inheritance, and stay of the class that upstream chose."""

import pytest

from tests.fixes.applied import applied, standing_in
from tests.standin.admissions import SHARED_LEAF, leave_a_leaf
from tests.standin.serving import Server

ARCHITECTURES = {"sparse": "DSACacheManager", "hybrid": "MambaHybridCacheManager"}
RACY = ["A", "B", "B2", "C"]


def corrupt(architecture: str, what: str) -> int:
    server = Server({"architecture": architecture})
    assert type(server.manager).__name__ == ARCHITECTURES[architecture]
    with server.stall():
        server.serve(server.workload(24))
    return len(server.witness.corrupt(what))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", RACY)
def test_their_offsets_are_staged(variant: str, architecture: str) -> None:
    with standing_in(variant):
        assert corrupt(architecture, "block offsets") > 0
        with applied(["staged-offsets-v1"]):
            assert corrupt(architecture, "block offsets") == 0
        assert corrupt(architecture, "block offsets") > 0


@pytest.mark.parametrize("variant", RACY)
def test_who_reads_the_host_table_finds_it_filled(variant: str) -> None:
    """Sparse attention reads it on the CPU, through an alias taken once."""
    with standing_in(variant), applied(["staged-offsets-v1"]):
        assert corrupt("sparse", "host table") == 0


@pytest.mark.parametrize("variant", ["C", "D", "F"])
def test_a_hybrids_state_stays_with_the_request_that_is_put_off(variant: str) -> None:
    racy = ["staged-offsets-v1", "input-copy-fence"] if variant in RACY else []
    with standing_in(variant), applied(["token-budget", *racy]):
        server = Server({**SHARED_LEAF, "architecture": "hybrid"})
        requests = leave_a_leaf(server)
        responses = server.run(requests)
        assert [response.error_msg for response in responses] == [None] * len(requests)
        assert server.witness.corruptions == []
        server.close()
