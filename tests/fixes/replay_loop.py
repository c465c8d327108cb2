"""An executor's thread as the fence of graph inputs sees it: it replays graphs, and writes what they read."""

import threading
from typing import Any

from trtllm_kvfix import native
from trtllm_kvfix.fixes.graph_inputs.fix import ReplayFence
from trtllm_kvfix.staging import on_stream

WATCHDOG_S = 30.0


class Tables:
    """In upstream `CudaGraphLoraParams`. Owns one pinned word, which a graph copies to the device."""

    def __init__(self, device: native.Device) -> None:
        self.word, self.seen = device.pinned((1,), "int32"), device.empty((1,), "int32")
        self.graph = device.capture_copies([self.seen.address], [self.word.address], [4])
        self.written = threading.Event()
        self._moe_slot_cache: dict[tuple[int, int], str] = {}  # upstream's, of what a graph was handed

    def inputs(self) -> dict[str, Any]:
        return {"lora_params": {"cuda_graph_params": self}}


class Loop:
    """An executor's thread, on one stream."""

    def __init__(self) -> None:
        self.device = native.open_device("cpu")
        self.stream = self.device.create_stream()
        self.fence = ReplayFence()

    def tables(self, *, handed_out: bool = True) -> Tables:
        tables = Tables(self.device)
        self.fence.handing_out(lambda _tables: "tables" if handed_out else None)(tables)
        return tables

    def replay(self, tables: Tables, inputs: Any = None) -> None:
        def original(_runner: Any, _key: Any, _inputs: Any) -> str:
            self.device.launch_graph(tables.graph, self.stream)
            return "outputs"

        with on_stream(self.device, self.stream):
            given = tables.inputs() if inputs is None else inputs
            assert self.fence.replaying(original)(object(), "key", given) == "outputs"

    def write(self, tables: Tables, value: int) -> None:
        def original(owner: Tables, number: int, *, tokens_per_seq: int) -> str:
            owner.word.array[0] = number * tokens_per_seq
            owner.written.set()
            return "nothing"

        with on_stream(self.device, self.stream):
            assert self.fence.writing(original)(tables, value, tokens_per_seq=1) == "nothing"

    def require_write_at_once(self, tables: Tables, value: int) -> None:
        """The write must not wait, although everything behind a closed gate is pending."""
        thread = threading.Thread(target=self.write, args=(tables, value), daemon=True)
        thread.start()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive() and int(tables.word.array[0]) == value

    def seen(self, tables: Tables) -> int:
        return int(self.device.download(tables.seen, self.stream)[0])

    def require_write_waits(self, tables: Tables, gate: int) -> None:
        """The write waits until the gate is opened. By then the graph has read what was there before."""
        before = int(tables.word.array[0])
        thread = threading.Thread(target=self.write, args=(tables, before + 1), daemon=True)
        thread.start()
        # Nothing shows that a thread is blocked in the device. One that is not sets the event within microseconds.
        assert not tables.written.wait(0.1)
        self.device.open_gate(gate)
        thread.join(WATCHDOG_S)
        assert tables.written.is_set()
        assert (self.seen(tables), int(tables.word.array[0])) == (before, before + 1)
