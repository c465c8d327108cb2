"""Needs a CUDA GPU, torch, pydantic, and tests/ beside integration/.

The connector in the stand-in's executor loop, configured as users do it, with overlap, torch's tensors and streams, and
both tiers too small for the traffic. Every block is looked at whenever attention reads it. `KVFIX_TRAFFIC_REQUESTS`
requests of each variant, 2,000 unless set. `KVFIX_RESULTS` names a folder for the rows of what ended without a wrong
value.
"""

import logging
import os

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("pydantic", reason="needs pydantic, for the settings")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from integration.gpu.record import record  # noqa: E402
from tests.offload.chats import Chats  # noqa: E402
from tests.offload.held import Held  # noqa: E402
from tests.offload.stand_in import OffloadServer, offloading  # noqa: E402
from tests.offload.test_stand_in_traffic import (  # noqa: E402
    DEVICE_BLOCKS,
    HOST_BLOCKS,
    Disturbance,
    mark_of,
    require_clean,
    serve,
)
from tests.standin.fixture import VARIANTS  # noqa: E402  nothing of this is there where the module is skipped
from trtllm_kvfix.metrics import counters  # noqa: E402
from trtllm_kvfix.offload.transfers import Transfers  # noqa: E402

log = logging.getLogger(__name__)
REQUESTS = int(os.environ.get("KVFIX_TRAFFIC_REQUESTS", "2000"))  # of each variant
CONTROL_REQUESTS = 150
COLUMNS = ("variant", "answered", "cancelled", "reads", "blocks_loaded")
# A copy that faults takes the whole CUDA context with it; these leave a GPU as it was.
HARMLESS_FAULTS = ("the mark is refused", "the queue is full")


def warm_up(server: OffloadServer) -> None:
    """Loading kernels waits for streams that are held."""
    Chats(server, 40, seed=9).run()


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_block_ever_holds_a_foreign_or_half_written_value(variant: str) -> None:
    loaded = counters.offload_loaded_blocks.value
    with offloading(variant, HOST_BLOCKS, DEVICE_BLOCKS, device="torch") as server:
        chats = serve(server, REQUESTS, seed=1)
        evicted = server.index.stats().evicted
        require_clean(server)
        assert chats.cancelled > 0 and server.contents.reads > REQUESTS
        assert counters.offload_loaded_blocks.value - loaded > REQUESTS // 2
        assert evicted > 0
        blocks = int(counters.offload_loaded_blocks.value - loaded)
        told = variant, chats.answered, chats.cancelled, server.contents.reads, blocks
        record("offload_traffic.csv", dict(zip(COLUMNS, told, strict=True)))
        log.info("%s: %d answered, %d cancelled, %d reads, %d blocks loaded", *told)


@pytest.mark.parametrize("direction", ["store", "load"])
@pytest.mark.parametrize("fault", HARMLESS_FAULTS)
def test_a_transfer_that_fails_costs_time_alone(fault: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS, device="torch") as server:
        disturbance = Disturbance(server, fault, direction, monkeypatch)
        serve(server, CONTROL_REQUESTS, seed=2, disturb=disturbance)
        require_clean(server)
        assert disturbance.planted > 0


def test_a_step_that_the_gpu_is_late_with_is_waited_for() -> None:
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS, device="torch") as server:
        warm_up(server)
        with Held(server):
            serve(server, CONTROL_REQUESTS, seed=1)
        require_clean(server)


def test_stores_that_wait_for_nothing_save_what_has_not_been_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with offloading("F", HOST_BLOCKS, DEVICE_BLOCKS, device="torch") as server:
        warm_up(server)
        monkeypatch.setattr(Transfers, "mark", mark_of(server.device.create_stream()))
        with Held(server, stores_go_first=True):
            serve(server, CONTROL_REQUESTS, seed=1)
        assert len(server.contents.corrupt) > CONTROL_REQUESTS // 10
