"""The tensors, streams and events that the stand-in works with, on whatever device was chosen.

Upstream uses torch. The tests have none, so memory of our own stands in for it: `.numpy()` where upstream has a CPU
tensor, `native.DeviceArray` where it has a CUDA tensor. `use` chooses another implementation.
"""

import os
from contextlib import AbstractContextManager
from typing import Any, Protocol

Shape = tuple[int, ...]


class Stream(Protocol):
    @property
    def cuda_stream(self) -> int: ...
    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...


class Event(Protocol):
    def record(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool: ...


class Tensors(Protocol):
    """Whatever takes no stream works on the thread's current one."""

    def pinned(self, shape: Shape) -> Any:
        """int32 host tensor, zeroed."""

    def on_device(self, shape: Shape) -> Any:
        """int32 device tensor, of whatever content."""

    def copy_rows(self, dst: Any, host: Any, rows: int, width: int) -> None:
        """dst[p, :rows, :, :width].copy_(host[p, :rows, :, :width], non_blocking=True) for every pool p."""

    def copy_head(self, dst: Any, host: Any, count: int) -> None:
        """dst[:count].copy_(host[:count], non_blocking=True) of one-dimensional tensors."""

    def copy_item(self, dst: Any, dst_index: int, src: Any, src_index: int) -> None:
        """dst[dst_index].copy_(src[src_index], non_blocking=True)"""

    def read_back(self, src: Any) -> Any:
        """A fresh host tensor that receives `src` when the stream comes to it."""

    def gather_rows(
        self, dst: Any, table: Any, copy_index: Any, rows: int, scale: list[int], v_offset: list[int], stream: int
    ) -> None:
        """A kernel: reads `table` and `copy_index` from host memory when it runs, and keeps neither alive."""

    def stream(self) -> Stream: ...
    def external_stream(self, handle: int) -> Stream: ...
    def current_stream(self) -> Stream: ...
    def on(self, stream: Stream) -> AbstractContextManager[Any]: ...
    def event(self) -> Event: ...
    def close_gate(self, stream: Stream) -> int: ...
    def open_gate(self, gate: int) -> None: ...


_chosen: Tensors | None = None


def use(tensors: Tensors | None) -> None:
    """None: back to what FAKE_TRTLLM_DEVICE says."""
    global _chosen  # noqa: PLW0603  torch's current device is as global as this
    _chosen = tensors


def tensors() -> Tensors:
    global _chosen  # noqa: PLW0603
    if _chosen is None:
        from .native_tensors import NativeTensors  # noqa: PLC0415  loads native code; `import tensorrt_llm` does not

        _chosen = NativeTensors.open(os.environ.get("FAKE_TRTLLM_DEVICE", "cpu"))
    return _chosen
