"""Traffic through the stand-in's executor loop, with overlap, where both tiers are too small for it. What each block
holds is looked at whenever attention reads it.

KVFIX_TRAFFIC_REQUESTS sets how many requests each variant gets.
"""

import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import Mark
from trtllm_kvfix.offload.transfers import Transfers

from .chats import Chats
from .faults import FAULTS, heal, transfers_missed
from .held import Held
from .stand_in import OffloadServer, offloading

REQUESTS = int(os.environ.get("KVFIX_TRAFFIC_REQUESTS", "100"))
HOST_BLOCKS, DEVICE_BLOCKS = 120, 96  # a conversation grows to 20 blocks, and there are 24 of them
Disturb = Callable[[random.Random], None]


def serve(server: OffloadServer, requests: int, seed: int, disturb: Disturb = lambda _: None) -> Chats:
    chats = Chats(server, requests, seed, disturb)
    chats.run()
    server.close()
    server.contents.judge()
    assert chats.answered + chats.cancelled == requests
    return chats


def require_clean(server: OffloadServer) -> None:
    """No foreign or half-written value was read, and nothing is held any more."""
    server.connector.scheduler.build_connector_meta(None)  # takes note of what has ended
    assert server.contents.corrupt == []
    server.index.check_invariants()
    server.index.drop()
    assert server.index.stats().free == HOST_BLOCKS, "nothing is pinned or on its way"
    assert len(server.connector.scheduler.side._sources) == 0
    assert server.manager.impl.get_kv_cache_stats().used_num_blocks == 0


def blocks_taken(server: OffloadServer) -> int:
    """Counts blocks taken from the free ones. Blocks that are cached and held by nobody are free."""
    impl = server.manager.impl
    if hasattr(impl, "native"):
        return int(impl.native.get_kv_cache_stats().total.blocks_new)
    return int(impl.get_kv_cache_stats().alloc_new_blocks)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_block_ever_holds_a_foreign_or_half_written_value(variant: str) -> None:
    loaded = counters.offload_loaded_blocks.value
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server:
        chats = serve(server, REQUESTS, seed=1)
        evicted = server.index.stats().evicted
        require_clean(server)
        assert server.contents.reads > REQUESTS and chats.cancelled > 0
        assert counters.offload_loaded_blocks.value - loaded > REQUESTS // 2, "the host tier was used"
        assert evicted > 0, "and had to make room"
        assert blocks_taken(server) > DEVICE_BLOCKS, "as had the device"
        assert server.witness.corruptions == []


def test_a_step_that_the_device_is_late_with_is_waited_for() -> None:
    """Stores of a step's blocks are announced before the device has begun with it."""
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS) as server, Held(server):
        serve(server, REQUESTS, seed=1)
        require_clean(server)


def test_stores_that_wait_for_nothing_save_what_has_not_been_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the barrier taken out, everything else as it is."""
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS) as server, Held(server, stores_go_first=True):
        monkeypatch.setattr(Transfers, "mark", mark_of(server.device.create_stream()))
        serve(server, REQUESTS, seed=1)
        assert len(server.contents.corrupt) > REQUESTS // 10


def mark_of(idle: int) -> Callable[[Transfers, int], Mark]:
    """This takes the place of `Transfers.mark`: a point in a stream that has nothing to do."""

    def mark(self: Transfers, stream: int) -> Mark:
        del stream
        return self._marks.set(idle)

    return mark


class Disturbance:
    """Plants a fault again and again, each time for a while and until a transfer has met it."""

    def __init__(self, server: OffloadServer, fault: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench: Any = SimpleNamespace(worker=server.worker, device=server.device)
        self.fault, self.direction, self.patch = fault, direction, monkeypatch
        self.planted = 0
        self._missed_before = -1.0  # what had been missed when the fault was planted

    def __call__(self, chance: random.Random) -> None:
        if chance.random() < 0.9 or transfers_missed() == self._missed_before:
            return
        self.patch.undo()
        heal(self.bench)
        if chance.random() < 0.5:
            FAULTS[self.fault](self.patch, self.bench, self.direction)
            self.planted += 1
            self._missed_before = transfers_missed()


@pytest.mark.parametrize("direction", ["store", "load"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_transfer_that_fails_at_any_step_costs_time_alone(
    fault: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = transfers_missed()
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS) as server:
        disturbance = Disturbance(server, fault, direction, monkeypatch)
        serve(server, REQUESTS // 2, seed=2, disturb=disturbance)
        require_clean(server)
        assert disturbance.planted > 0
        assert transfers_missed() > missed
