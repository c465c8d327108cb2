"""A request that has ended is in one step more, and its blocks are another's by then. What is loaded into them waits
for that step. So do transfers that tests hold for a while.
"""

import numpy as np
import pytest

from tests.standin.fixture import VARIANTS
from trtllm_kvfix.metrics import counters
from trtllm_kvfix.native import TransferLane
from trtllm_kvfix.offload.transfers import Transfers

from .held import Held
from .stand_in import OffloadServer, offloading
from .test_kept_blocks import (
    DEVICE_BLOCKS,
    FILLER,
    FILLS_THE_DEVICE,
    HOST_BLOCKS,
    PROMPT,
    RETURNING,
    WAIT_S,
    Gate,
    transfers_held,
)
from .test_stand_in_traffic import mark_of

ENDING = 9
LONG_ENOUGH_S = 0.2  # for a copy that waits for nothing


def hand_over(server: OffloadServer) -> None:
    """The host tier has all that the ending one computes, so nothing is saved that would keep its blocks."""
    loaded = counters.offload_loaded_blocks.value
    server.run([server.request(1, PROMPT, 1)])
    server.run([server.request(FILLER, FILLS_THE_DEVICE, 1)])
    server.run([server.request(ENDING, FILLS_THE_DEVICE, 1), server.request(RETURNING, PROMPT, 2)])
    server.close()
    server.contents.judge()
    assert counters.offload_loaded_blocks.value - loaded == 2


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_load_waits_for_the_step_that_is_one_too_many(variant: str) -> None:
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server, Held(server):
        hand_over(server)
        assert server.contents.corrupt == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_load_that_waits_for_nothing_is_overwritten(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the barrier taken out, everything else as it is. The step reads what was loaded, and writes it."""
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS) as server, Held(server, stores_go_first=True):
        monkeypatch.setattr(Transfers, "mark", mark_of(server.device.create_stream()))
        hand_over(server)
        assert set(server.contents.corrupt) == {ENDING, RETURNING}


def test_held_transfers_wait_for_the_device_once_they_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS) as server, transfers_held(server, monkeypatch) as gate:
        gate.open()
        device, computes = server.device, server.device.create_stream()
        lane, memory = TransferLane(device, order="any"), device.pinned((2, 16), "uint32")
        target, source, size = (np.array([one], np.uint64) for one in (memory.address, memory.address + 64, 64))
        step = Gate(device, computes)
        mark = server.worker.side._transfers.mark(computes)
        assert lane.enqueue(1, target, source, size, after=mark) == "taken"
        assert not lane.wait(1, LONG_ENOUGH_S)
        step.open()
        assert lane.wait(1, WAIT_S) and lane.close(WAIT_S)
