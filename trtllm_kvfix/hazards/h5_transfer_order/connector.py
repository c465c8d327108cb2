"""H5 end to end: both sides of the offload connector, its host pool, lanes and index, beside a stream that computes.

The control is the same connector with a stream on which nothing runs: its transfers are ordered behind nothing.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Side
from trtllm_kvfix.hazards.h5_transfer_order.transfers import BLOCK_BYTES, BLOCK_WORDS, BLOCKS, SHAPE, TwoStreams
from trtllm_kvfix.native import Device, HostPool
from trtllm_kvfix.offload.link import Link
from trtllm_kvfix.offload.plan import Step
from trtllm_kvfix.offload.scheduler import OffloadScheduler
from trtllm_kvfix.offload.switches import Switches
from trtllm_kvfix.offload.worker import OffloadWorker
from trtllm_kvfix.offload_section import OffloadSettings
from trtllm_kvfix.ranks import OneRank

TOKENS_PER_BLOCK = 4
TOKENS = BLOCKS * TOKENS_PER_BLOCK


class Connector:
    """Both sides, and as much of an executor as brings blocks to the host tier and back."""

    def __init__(self, device: Device, blocks: Any) -> None:
        settings, link = OffloadSettings(), Link()
        self._link = link
        self._requests = 0
        self.worker = OffloadWorker(settings, link, OneRank(), self._make_pool)
        self.worker.register(device, [blocks])
        self.scheduler = OffloadScheduler(settings, TOKENS_PER_BLOCK, link, Switches(None))

    def _make_pool(self, device: Device, block_bytes: int, _: object) -> HostPool:
        # Two rounds fit: what the last one stored gives way to the next.
        self.pool = HostPool(device, host_bytes=2 * BLOCKS * block_bytes, block_bytes=block_bytes)
        return self.pool

    def request(self, content: int) -> SimpleNamespace:
        """Requests of one content share their tokens."""
        self._requests += 1
        tokens = [content, *range(1, TOKENS + 1)]
        return SimpleNamespace(
            request_id=self._requests, get_tokens=lambda _beam: list(tokens), lora_task_id=None, cache_salt_id=None,
            py_multimodal_data=None, sampling_config=SimpleNamespace(beam_width=1),
        )  # fmt: skip

    def begin_store(self, request: SimpleNamespace, stream: int) -> Step:
        """The report of a request whose whole prompt has been given to the device."""
        self.scheduler.get_num_new_matched_tokens(request, 0)
        self.scheduler.update_state_after_alloc(request, [list(range(BLOCKS))])
        report = SimpleNamespace(
            request_id=request.request_id, new_tokens=request.get_tokens(0), new_block_ids=list(range(BLOCKS)),
            computed_position=TOKENS,
        )  # fmt: skip
        return self._begin(SimpleNamespace(new_requests=[report], cached_requests=[]), stream)

    def begin_load(self, request: SimpleNamespace, stream: int) -> Step:
        tokens, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
        if (tokens, is_async) != (TOKENS, True):
            raise AssertionError(f"the host tier has {tokens} tokens of a prompt whose {TOKENS} were stored")
        self.scheduler.update_state_after_alloc(request, [list(range(BLOCKS))])
        return self._begin(None, stream)

    def over(self) -> bool:
        """Whether the transfer that was begun has ended."""
        self.worker.finished([], [])
        return bool(self._link.ledger.ended)

    def wait(self) -> None:
        while not self.over():
            pass

    def settle(self) -> None:
        """Both sides take note of the end, of which there may be none."""
        self.scheduler.build_connector_meta(None)

    def _begin(self, report: SimpleNamespace | None, stream: int) -> Step:
        step = self.scheduler.build_connector_meta(report)
        self.worker.bind(step)
        self.worker.start(stream)
        return step

    def stored(self, step: Step) -> NDArray[np.uint32]:
        """Contents of the host tier for the blocks of the step's store."""
        words = (ctypes.c_uint32 * (self.pool.bytes // 4)).from_address(self.pool.address)
        slots: NDArray[np.uint32] = np.ctypeslib.as_array(words).reshape(-1, BLOCK_WORDS)
        return slots[list(step.stores[0].slots)].copy()


class ConnectorArm(TwoStreams):
    def __init__(self, device: Device, seed: int, *, ordered: bool) -> None:
        super().__init__(device, seed)
        self.ordered = ordered
        self.computes = self.held if ordered else self.free  # as far as the connector knows
        self.connector = Connector(device, self.blocks)
        self.content = 0
        self.pending = False

    def waiting(self) -> bool:
        return not self.ordered or not self.connector.over()

    def wait_free(self) -> None:
        if self.pending:
            self.connector.wait()
            self.pending = False

    def settle(self) -> None:
        self.wait_free()
        super().settle()
        self.connector.settle()

    def close(self) -> None:
        self.connector.worker.close()
        super().close()


class StoreThroughConnector(ConnectorArm):
    """A prompt is reported to the connector as computed while the kernels that write its blocks are queued."""

    held_work, free_work = "kernel writes the blocks", "store"

    def prepare(self) -> None:
        self.content += 1
        self.request = self.connector.request(self.content)
        self.value = int(self.random.integers(1, 1 << 32))
        self.device.upload(self.blocks, self.draw(), self.held)

    def lead_in(self) -> None:
        self.device.fill_words(self.blocks.address, BLOCKS * BLOCK_WORDS, self.value, self.held)
        self.held_work_ends()

    def call(self) -> None:
        self.step = self.connector.begin_store(self.request, self.computes)
        self.pending = True

    def compare(self) -> Comparison:
        return Comparison(np.full(SHAPE, self.value, np.uint32), self.connector.stored(self.step))


class LoadThroughConnector(ConnectorArm):
    """A request's blocks are loaded while attention that reads them for their last owner is queued."""

    held_work, free_work = "attention reads the blocks", "load"

    def prepare(self) -> None:
        self.content += 1
        self.device.upload(self.blocks, self.draw(), self.held)
        self.connector.begin_store(self.connector.request(self.content), self.held)
        self.connector.wait()
        self.connector.settle()
        self.before = self.draw()
        self.device.upload(self.blocks, self.before, self.held)
        self.device.upload(self.seen, np.zeros(SHAPE, np.uint32), self.held)

    def lead_in(self) -> None:
        self.device.copy(self.seen.address, self.blocks.address, BLOCKS * BLOCK_BYTES, self.held)
        self.held_work_ends()

    def call(self) -> None:
        self.connector.begin_load(self.connector.request(self.content), self.computes)
        self.pending = True

    def compare(self) -> Comparison:
        return Comparison(self.before, self.device.download(self.seen, self.held))


def build(arm: type[ConnectorArm], ordered: bool, device: Device, seed: int) -> Arm:
    return arm(device, seed, ordered=ordered)


def side(arm: type[ConnectorArm], *, ordered: bool, effect: str) -> Side:
    make: Callable[[Device, int], Arm] = partial(build, arm, ordered)
    if ordered:
        how = "The connector marks the stream that computes, and its copy stream waits for the mark."
        return Side(make, how, "an unordered copy, issued later, is over: only the mark holds this one", effect)
    how = "The same connector, given a stream on which nothing runs."
    return Side(make, how, f"the {arm.free_work} is over, and the compute stream has not begun", effect)


CASES = (
    Case(
        name="connector-store",
        variant="writer",
        hazard="H5",
        title="Connector: a prompt goes to the host tier while the kernels that write its blocks are queued",
        call="the connector learns that the prompt has been computed",
        control_kind=ControlKind.WRONG_STREAM,
        control=side(
            StoreThroughConnector,
            ordered=False,
            effect="the kernel writes the blocks; the host tier keeps what was there before",
        ),
        fixed=side(StoreThroughConnector, ordered=True, effect="the kernel writes the blocks, then they are stored"),
    ),
    Case(
        name="connector-load",
        variant="reader",
        hazard="H5",
        title="Connector: a prompt comes back into blocks that queued attention reads for their last owner",
        call="the connector learns where the prompt's blocks are",
        control_kind=ControlKind.WRONG_STREAM,
        control=side(
            LoadThroughConnector, ordered=False, effect="attention runs and reads what was loaded for somebody else"
        ),
        fixed=side(LoadThroughConnector, ordered=True, effect="attention reads the blocks, then they are loaded"),
    ),
)
