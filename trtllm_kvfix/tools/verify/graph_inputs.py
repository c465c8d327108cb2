"""H9: a CUDA graph holds the address of a pinned table, which the next step fills in place while a replay is queued.

The fix makes the host wait, so its next step has a thread of its own here: with the gate closed, it is seen to wait.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Event
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trtllm_kvfix.fixes.graph_inputs.mechanism import ReplayFence
from trtllm_kvfix.hazards.case import Arm, Case, Comparison, ControlKind, Lane, Side
from trtllm_kvfix.native import Device
from trtllm_kvfix.staging import on_stream

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


class Observed:
    """A device that reports when a thread is about to wait for an event."""

    def __init__(self, device: Device, blocked: Event) -> None:
        self._device = device
        self._blocked = blocked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def wait(self, event: int) -> None:
        self._blocked.set()
        self._device.wait(event)


class FencedSteps(Steps):
    """The fix itself: an event behind each replay, and a table that is filled behind that event."""

    is_early = False

    def __init__(self, device: Device, seed: int) -> None:
        super().__init__(device, seed)
        fence = ReplayFence()
        fence.handing_out(lambda _graph: self.graph.table)(self.graph)
        self._fill: Callable[..., None] = fence.writing(Graph.write)
        self._replay: Callable[..., None] = fence.replaying(lambda *_: self.graph.replay(self.held))
        self._blocked = Event()  # the next step is, or has ended
        self._host = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvfix-verify-host")
        self._next_step: Future[None] | None = None

    def fill(self, step: int) -> None:
        with self._on_held_stream():
            self._fill(self.graph, self.tables[step])

    def replay(self) -> None:
        with self._on_held_stream():
            self._replay(None, "key", {"lora_params": {"cuda_graph_params": self.graph}})

    def disturb(self) -> None:
        self._blocked.clear()
        self._next_step = self._host.submit(self.fill, 1)
        self._next_step.add_done_callback(lambda _: self._blocked.set())
        self._blocked.wait()

    def waiting(self) -> bool:
        return self._next_step is not None and not self._next_step.done()

    def wait_free(self) -> None:
        if self._next_step is not None:
            self._next_step.result()

    def settle(self) -> None:
        super().settle()
        self.wait_free()

    def close(self) -> None:
        self._host.shutdown()
        super().close()

    def _on_held_stream(self) -> AbstractContextManager[None]:
        return on_stream(cast("Device", Observed(self.device, self._blocked)), self.held)


CASES = (
    Case(
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
            FencedSteps,
            how="An event lies behind the replay, and a step that fills the table waits for it (fix graph-inputs).",
            meanwhile="step B is about to fill the same table, and waits",
            effect="the replay of step A runs and finds step A; then step B fills the table",
        ),
    ),
)
