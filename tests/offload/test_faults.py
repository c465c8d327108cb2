"""Faults of ours where upstream's loop runs through the connector: it goes on, and nobody reads wrong values."""

from collections.abc import Iterator

import pytest

from tests.fixes.faults import failing
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.offload import patches
from trtllm_kvfix.offload.patches import KeptBlocks
from trtllm_kvfix.overlay import fuse

from .stand_in import offloading
from .test_cancelled_loads import cancelled_while_it_loads
from .test_kept_blocks import DEVICE_BLOCKS, HOST_BLOCKS, RETURNING, end_while_saving, serve_again
from .test_partial_copies import copy_and_load, scene

FUSES = (patches.KEPT_BLOCKS, patches.PARTIAL_COPIES, patches.ROOM_FOR_LOADS)


@pytest.fixture(autouse=True)
def _none_before() -> Iterator[None]:
    for part in FUSES:
        fuse.reset(part)
    yield
    for part in FUSES:
        fuse.reset(part)


@pytest.mark.parametrize("place", ["ask", "is_over", "ids", "KeptBlocks.keeps"])
@pytest.mark.parametrize("variant", ["A", "B", "B2"])
def test_a_fault_where_upstream_frees_blocks_waits(variant: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = counters.fix_faults.by_fix().get(patches.KEPT_BLOCKS, 0)
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with failing(f"offload.patches.{place}", always=True) as planted:
            end_while_saving(server, monkeypatch)
            serve_again(server, blocks_loaded=0)  # what had not begun to be saved was not
        assert planted.raised > 0
        assert server.contents.corrupt == []
        assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 0
    assert fuse.of(patches.KEPT_BLOCKS).blown or place == "KeptBlocks.keeps"  # which is not asked about every request
    assert counters.fix_faults.by_fix()[patches.KEPT_BLOCKS] > before


def test_without_the_wait_foreign_values_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(KeptBlocks, "waits_instead", lambda *_: True)
    with offloading("B", HOST_BLOCKS, DEVICE_BLOCKS) as server, failing("offload.patches.ask", always=True):
        end_while_saving(server, monkeypatch)
        serve_again(server)
        assert set(server.contents.corrupt) == {RETURNING}


@pytest.mark.parametrize("place", ["ask", "KeptBlocks._is_busy"])
def test_a_fault_when_a_request_is_cancelled_while_it_loads(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading("B", HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with (
            failing(f"offload.patches.{place}", always=True) as planted,
            cancelled_while_it_loads(server, monkeypatch),
        ):
            assert not server.worker.side._transfers.running()  # it was waited for
        server.close()
        assert planted.raised > 0
        assert server.contents.corrupt == []
        assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 0


def test_what_is_kept_goes_once_the_fault_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading("B", HOST_BLOCKS, DEVICE_BLOCKS) as server:
        with cancelled_while_it_loads(server, monkeypatch):
            assert len(server.worker.kept) == 1
            planted = failing("offload.patches.KeptBlocks._is_busy", always=False)
            fault = planted.__enter__()
        planted.__exit__(None, None, None)
        server.close()
        assert fault.raised == 1
        assert len(server.worker.kept) == 0
        assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 0


@pytest.mark.parametrize("place", ["note_cache_manager", "follow_copies"])
def test_loads_do_not_begin_behind_copies_that_are_not_known(place: str) -> None:
    """The control is in test_partial_copies.py: loads that come behind no such copy."""
    with scene(loads_end_first=True) as (server, held):
        with failing(f"offload.connector.KvfixOffloadWorker.{place}", always=True) as planted:
            assert copy_and_load(server, held, loads=0) == set()
        assert planted.raised > 0
        assert fuse.of(patches.PARTIAL_COPIES).faults > 0
