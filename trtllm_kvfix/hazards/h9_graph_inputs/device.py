"""H9: a CUDA graph holds the address of a pinned table, which the next step fills in place while a replay is queued.

The fix makes the host wait, so its next step has a thread of its own here: with the gate closed, it is seen to wait.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Case, ControlKind, Lane, Side
from trtllm_kvfix.hazards.h7_other_pinned_buffers.device import LoopArm
from trtllm_kvfix.hazards.simulated import trial
from trtllm_kvfix.native import Device, DeviceArray, PinnedArray
from trtllm_kvfix.staging import on_stream

SLOTS, WORDS = SHAPE = (8, 4)  # of each adapter: its rank, and where its weights are
ROW_BYTES = WORDS * 4


class Graph:
    """What a model captured: it copies a table to the device, slot by slot."""

    def __init__(self, device: Device, table: PinnedArray, seen: DeviceArray) -> None:
        self._device = device
        self.table = table
        rows = np.arange(SLOTS, dtype=np.uint64) * np.uint64(ROW_BYTES)
        sizes = np.full(SLOTS, ROW_BYTES, np.uint64)
        self._captured = device.capture_copies(np.uint64(seen.address) + rows, np.uint64(table.address) + rows, sizes)

    def replay(self, stream: int) -> None:
        self._device.launch_graph(self._captured, stream)

    def write(self, rows: NDArray[np.uint32]) -> None:
        self.table.array[:] = rows

    def close(self) -> None:
        self._device.destroy_graph(self._captured)


class Steps(LoopArm):
    """Upstream: every step fills the table in place and replays the graph; nothing lies between two steps."""

    lanes = Lane("stream", "replay"), Lane("next step", "fills the table", early=True)
    next_waits = False

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed, SHAPE)
        self.graph = Graph(device, self.table, self.seen)

    def call(self) -> None:
        self.fill(0)
        self.replay()

    def write_next(self) -> None:
        self.fill(1)

    def fill(self, step: int) -> None:
        self.graph.write(self.steps[step])

    def replay(self) -> None:
        self.graph.replay(self.held)

    def close(self) -> None:
        self.graph.close()
        super().close()


class ReplayProtection(Protocol):
    """A fix that knows when the replays that read a table are over."""

    def handing_out(self, original: Callable[..., Any]) -> Callable[..., Any]: ...
    def writing(self, original: Callable[..., Any]) -> Callable[..., Any]: ...
    def replaying(self, original: Callable[..., Any]) -> Callable[..., Any]: ...


class FencedSteps(Steps):
    """The fix itself: an event behind each replay, and a table that is filled behind that event."""

    lanes = Lane("stream", "replay"), Lane("next step", "fills the table")
    next_waits = True

    def __init__(self, build: Callable[[], ReplayProtection], device: Device, seed: int) -> None:
        super().__init__(device, seed)
        fence = build()
        fence.handing_out(lambda _graph: self.table)(self.graph)
        self._fill: Callable[..., None] = fence.writing(Graph.write)
        self._replay: Callable[..., None] = fence.replaying(lambda *_: self.graph.replay(self.held))

    def call(self) -> None:
        with on_stream(self.device, self.held):
            super().call()

    def fill(self, step: int) -> None:
        self._fill(self.graph, self.steps[step])

    def replay(self) -> None:
        self._replay(None, "key", {"lora_params": {"cuda_graph_params": self.graph}})


def self_test(build: Callable[[], ReplayProtection]) -> None:
    trial(lambda device: FencedSteps(build, device, 0))


def case(build: Callable[[], ReplayProtection]) -> Case:
    return Case(
        name="graph-inputs",
        variant="captured copies",
        hazard="H9",
        title="Inputs of a CUDA graph: a table is filled while the replay that reads it is queued",
        call="step A fills the table, and the graph that copies it is replayed",
        control_kind=ControlKind.UPSTREAM,
        control=Side(
            Steps,
            how="As upstream: a captured copy reads the persistent pinned table at each replay, by its address.",
            meanwhile="step B has filled the same table",
            effect="the replay of step A runs and finds step B",
        ),
        fixed=Side(
            partial(FencedSteps, build),
            how="An event lies behind the replay, and a step that fills the table waits for it (fix graph-inputs).",
            meanwhile="step B is about to fill the same table, and waits",
            effect="the replay of step A runs and finds step A; then step B fills the table",
        ),
    )
