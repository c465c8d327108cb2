"""The lanes of a rank's transfers: one for each direction, by DMA or by the copy kernel."""

from typing import Literal, TypeAlias

from trtllm_kvfix.native import Device, TransferLane
from trtllm_kvfix.offload_section import OffloadSettings

STREAMS_LOST_MAX = 256  # in a row; the scheduler side stops asking long before

Direction: TypeAlias = Literal["store", "load"]
Way: TypeAlias = Literal["dma", "kernel"]

# A store may not read its blocks before its turn: compute has been given them, but has not written them yet.
# Host blocks were complete before they could be found, so a load may read them at any time.
SOURCE_ORDER = {"store": "stream", "load": "any"}


def make_lane(device: Device, direction: Direction, way: Way, settings: OffloadSettings) -> TransferLane:
    return TransferLane(
        device, order=SOURCE_ORDER[direction], queue_max=settings.queue_max, in_flight_max=settings.in_flight_max,
        failures_max=STREAMS_LOST_MAX, kernel_sms=settings.copy_sms if way == "kernel" else 0,
    )  # fmt: skip
