"""H9: a CUDA graph holds the address of a pinned table, which the next step fills in place while a replay is queued.

The fix makes the host wait, so its next step has a thread of its own here: with the gate closed, it is seen to wait.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Lane, Side
from trtllm_kvfix.hazards.host_thread import HostThread
from trtllm_kvfix.hazards.simulated import trial
from trtllm_kvfix.native import Device

SLOTS, WORDS = SHAPE = (8, 4)  # of each adapter: its rank, and where its weights are
ROW_BYTES = WORDS * 4


class Graph:
    """A table by slot, and what a model captured that copies it to the device, slot by slot."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.table, self.seen = device.pinned(SHAPE, "uint32"), device.empty(SHAPE, "uint32")
        rows = np.arange(SLOTS, dtype=np.uint64) * np.uint64(ROW_BYTES)
        sizes = np.full(SLOTS, ROW_BYTES, np.uint64)
        to, origin = np.uint64(self.seen.address) + rows, np.uint64(self.table.address) + rows
        self._captured = device.capture_copies(to, origin, sizes)

    def replay(self, stream: int) -> None:
        self._device.launch_graph(self._captured, stream)

    def write(self, rows: NDArray[np.uint32]) -> None:
        self.table.array[:] = rows

    def close(self) -> None:
        self._device.destroy_graph(self._captured)


class Steps(Arm):
    """Upstream: every step fills the table in place and replays the graph; nothing lies between two steps."""

    is_early = True  # the next step, which does not wait

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        self.graph = Graph(device)

    def lanes(self) -> tuple[Lane, ...]:
        return Lane("stream", "replay"), Lane("next step", "fills the table", self.is_early)

    def prepare(self) -> None:
        self.tables = self.random.integers(1, 1 << 32, (2, *SHAPE), np.uint32)

    def call(self) -> None:
        self.fill(0)
        self.replay()

    def disturb(self) -> None:
        self.fill(1)

    def fill(self, step: int) -> None:
        self.graph.write(self.tables[step])

    def replay(self) -> None:
        self.graph.replay(self.held)

    def compare(self) -> Comparison:
        """The replay had to find the first step's table; in the end the second step's is there."""
        found = [self.device.download(self.graph.seen, self.held), self.graph.table.array.copy()]
        return Comparison(self.tables, np.stack(found))

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

    is_early = False

    def __init__(self, build: Callable[[], ReplayProtection], device: Device, seed: int) -> None:
        super().__init__(device, seed)
        fence = build()
        fence.handing_out(lambda _graph: self.graph.table)(self.graph)
        self._fill: Callable[..., None] = fence.writing(Graph.write)
        self._replay: Callable[..., None] = fence.replaying(lambda *_: self.graph.replay(self.held))
        self._host = HostThread(device, self.held)

    def fill(self, step: int) -> None:
        self._fill(self.graph, self.tables[step])

    def call(self) -> None:
        with self._host.current():
            super().call()

    def replay(self) -> None:
        self._replay(None, "key", {"lora_params": {"cuda_graph_params": self.graph}})

    def disturb(self) -> None:
        self._host.begin(lambda: self.fill(1))

    def waiting(self) -> bool:
        return self._host.waits()

    def wait_free(self) -> None:
        self._host.finish()

    def settle(self) -> None:
        super().settle()
        self.wait_free()

    def close(self) -> None:
        self._host.close()
        super().close()


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
