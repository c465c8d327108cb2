"""H13 on a GPU: a pageable source is rewritten when the copy has returned that should have read it during the call.

Whether it shows depends on the driver, so the driver is asked first: by one copy of each size, behind a gate that opens
by itself, because a driver may also read during the call by waiting for the stream.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, NotShown, Side
from trtllm_kvfix.hazards.ground import held, let_go_in_time
from trtllm_kvfix.hazards.h13_ephemeral_sources import batch_copy
from trtllm_kvfix.native import Device

NAME = "ephemeral-source"
KIB = 1024
SIZES = (4 * KIB, 64 * KIB, 96 * KIB, 128 * KIB, 256 * KIB, 1024 * KIB)


class Rewritten(Arm):
    """As upstream: the copy reads a vector of the host, which is rewritten when the call has returned."""

    def __init__(self, nbytes: int, overlap: bool, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.source = np.zeros(nbytes // 4, np.uint32)  # pageable
        self.arrived = device.empty(self.source.shape, "uint32")
        self._driver: Any = batch_copy.open_driver()
        self._overlap = overlap

    def prepare(self) -> None:
        self.meant, self.later = self.random.integers(1, 1 << 32, (2, *self.source.shape), np.uint32)
        self.source[:] = self.meant

    def call(self) -> None:
        address, nbytes = self.source.ctypes.data, self.source.nbytes
        batch_copy.copy_read_during_call(self._driver, self.arrived.address, address, nbytes, self.held, self._overlap)

    def disturb(self) -> None:
        self.source[:] = self.later

    def compare(self) -> Comparison:
        return Comparison(self.meant, self.device.download(self.arrived, self.held))


class Pinned(Rewritten):
    """What to do instead: the copy reads pinned memory of its own, which nobody writes before the copy is over."""

    def __init__(self, nbytes: int, overlap: bool, device: Device, seed: int) -> None:
        super().__init__(nbytes, overlap, device, seed)
        self._snapshot = device.pinned(self.source.shape, "uint32")

    def call(self) -> None:
        self._snapshot.array[:] = self.source
        pinned = self._snapshot
        self.device.copy_batch([self.arrived.address], [pinned.address], [pinned.nbytes], "stream", self.held)


def not_shown(build: Callable[[Device, int], Rewritten], device: Device) -> NotShown | None:
    if device.simulated:
        return NotShown("a simulated device keeps to the order that it is given; ask the driver of a GPU", False)
    try:
        with build(device, 0) as arm:
            return driver_is_right(arm)
    except OSError as error:
        return NotShown(str(error), False)


def driver_is_right(arm: Rewritten) -> NotShown | None:
    arm.prepare()
    arm.call()  # a driver may load things at the first call, and wait for all streams
    arm.settle()
    with let_go_in_time(held(arm.device, arm.held)) as let_go:
        arm.call()
        waited = let_go.is_set()
        arm.disturb()
    arm.settle()
    if waited:
        return NotShown("this driver waits for the stream during the call, so it has read the source", True)
    meant, found = arm.compare()
    if np.array_equal(meant, found):
        return NotShown("this driver reads the source during the call, as it was asked to", True)
    return None


def case(nbytes: int, overlap: bool) -> Case:
    copy = f"cuMemcpyBatchAsync of {nbytes // KIB} KiB of pageable memory, with source order DURING_API_CALL"
    rewritten = partial(Rewritten, nbytes, overlap)
    kind = ControlKind.UPSTREAM if overlap else ControlKind.REPAIR
    how = "As upstream, with a hint to overlap" if overlap else "After upstream's repair, without its hint"
    return Case(
        name=NAME,
        variant=f"{nbytes // KIB} KiB{', hint' if overlap else ''}",
        hazard="H13",
        title="A copy that is to read pageable memory during the call",
        call="the copy is enqueued, and returns",
        control_kind=kind,
        control=Side(
            rewritten,
            how=f"{how}: {copy}.",
            meanwhile="the host, told that the source is free, writes it again",
            effect="the copy runs and finds what was written later",
        ),
        fixed=Side(
            partial(Pinned, nbytes, overlap),
            how="The copy reads a pinned snapshot, which nobody writes until the copy is over.",
            meanwhile="the host writes the source again, and not the snapshot",
            effect="the copy runs and finds the snapshot",
        ),
        not_shown=partial(not_shown, rewritten),
    )


CASES = tuple(case(nbytes, overlap) for overlap, nbytes in product((True, False), SIZES))
