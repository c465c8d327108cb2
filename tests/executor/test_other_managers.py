"""Managers that derive from the V1 class: as racy, and what they read on the CPU is right."""

import pytest

from tests.standin.fixture import VARIANTS, upstream
from tests.standin.serving import Server

NAMES = {"sparse": "DSACacheManager", "hybrid": "MambaHybridCacheManager"}
RACY = ["A", "B", "B2", "C"]


@pytest.mark.parametrize("architecture", NAMES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_derived_managers_share_the_race(variant: str, architecture: str) -> None:
    with upstream(variant):
        server = Server({"architecture": architecture})
        assert type(server.manager).__name__ == NAMES[architecture]
        with server.stall():
            server.serve(server.workload(24))
        assert bool(server.witness.corrupt("block offsets")) is (variant in RACY)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_table_on_the_host_is_right_whatever_was_shipped(variant: str) -> None:
    with upstream(variant):
        server = Server({"architecture": "sparse"})
        with server.stall():
            server.serve(server.workload(24))
        assert server.witness.corrupt("host table") == []


@pytest.mark.parametrize("variant", ["B", "D"])
def test_a_table_that_is_replaced_shows_at_its_readers(variant: str) -> None:
    """The first attempt at #15546 reassigned the attribute; metadata holds the old one."""
    with upstream(variant):
        server = Server({"architecture": "sparse", "disable_overlap_scheduler": True})
        manager = server.manager
        server.run(server.workload(2))
        manager.host_kv_cache_block_offsets = manager.host_kv_cache_block_offsets.clone()
        server.serve(server.workload(8)[2:])
        assert server.witness.corrupt("block offsets") == []
        assert server.witness.corrupt("host table")
